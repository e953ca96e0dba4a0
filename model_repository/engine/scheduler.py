"""In-flight batching: who runs in the next step, in which slot of the KV cache, and what of it is there already.

A slot is one sequence's share of the KV cache, `context_window` cells. A finished sequence leaves its cells in its
slot until another one takes it, so that a prompt with the same beginning need not compute them again. Cells hold what
the weights made of the tokens, so those computed under one LoRA adapter are of no use under another.
"""

from __future__ import annotations

import itertools
import time
from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from model_repository.engine.prefill_pace import PrefillPace

# Copying a prefix moves a whole slot; below so many tokens computing them again is as cheap.
MIN_COPIED_TOKENS = 32


class KVCache(Protocol):
    """The operations on a KV cache that scheduling needs."""

    def copy(self, source: int, target: int) -> None:
        """Replace the target slot's cells by the source slot's."""
        ...

    def trim(self, slot: int, num_tokens: int) -> None:
        """Keep the first cells of a slot and free the others."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """A sequence as it is submitted."""

    sequence: int
    prompt: Sequence[int]
    adapter: str = ""  # the key of the LoRA adapter that it runs under; empty: none
    is_scored: bool = False  # the logits behind every prompt token are needed, so that each must be computed
    turn_s: float = 0.0  # those that wait are ordered by it; of equals the first to come is first

    def num_reusable(self, token_ids: Sequence[int]) -> int:
        """Return how many of these tokens, computed elsewhere, begin its prompt.

        The last token of a prompt never counts: it is always computed, for its logits.
        """
        if self.is_scored:
            return 0
        pairs = zip(token_ids, self.prompt[:-1], strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


@dataclass(slots=True)
class _Slot:
    index: int
    cells: list[int] = field(default_factory=list)  # the token ids whose keys and values are in the cache
    adapter: str = ""  # under which they were computed
    sequence: int | None = None  # who runs in it
    last_used: int = 0

    def num_reusable(self, job: Job) -> int:
        """Return how many of its cells a sequence could reuse."""
        return job.num_reusable(self.cells) if self.adapter == job.adapter else 0


@dataclass(slots=True)
class Running:
    """A sequence that has a slot."""

    job: Job
    slot: _Slot
    num_cached_tokens: int
    scheduled_s: float  # when it got the slot
    next_token_id: int | None = None  # sampled, not computed yet; None while in prefill

    @property
    def is_in_prefill(self) -> bool:
        """Whether prompt tokens are left to compute."""
        return self.next_token_id is None


@dataclass(slots=True)
class _Waiting:
    """A sequence that has no slot yet."""

    job: Job
    leader: Running | None = None  # who is computing a beginning of its prompt ...
    num_shared: int = 0  # ... of so many tokens


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence for one step: one token in decode, a piece of the prompt in prefill."""

    running: Running
    token_ids: Sequence[int]
    position: int  # of the first
    is_sampled: bool  # whether the next token is drawn after the last of them


class Scheduler:
    """Admits by turns, decodes every running sequence in every step, and fills up the step with prompts.

    A step computes sequences of one LoRA adapter only; the adapters in use take turns. A sequence whose prompt begins
    like one that is being computed waits until that beginning can be copied, and lets others pass: the `n` completions
    of one prompt compute it once.

    Args:
        num_slots: sequences that can run at a time.
        kv_cache: where their cells are.
        max_step_tokens: tokens that one step may compute.
        max_scored_tokens: tokens of scored prompts in one step: to read their logits costs more than to compute them.
        pace: how many prompt tokens there are in a step in which others decode.
    """

    def __init__(
        self,
        num_slots: int,
        kv_cache: KVCache,
        *,
        max_step_tokens: int = 512,
        max_scored_tokens: int = 64,
        pace: PrefillPace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.pace = pace or PrefillPace()  # told by whoever computes how long the steps took
        self._slots = [_Slot(index) for index in range(num_slots)]
        self._kv_cache = kv_cache
        self._max_step_tokens = max_step_tokens
        self._max_scored_tokens = max_scored_tokens
        self._waiting: list[_Waiting] = []  # by their turns
        self._running: dict[int, Running] = {}
        self._ticks = itertools.count(1)
        self._adapter = ""  # of the last step

    def submit(self, job: Job) -> None:
        """Queue a sequence."""
        insort(self._waiting, _Waiting(job), key=lambda item: item.job.turn_s)

    def free(self, sequence: int) -> None:
        """Take a sequence out, running or queued; its cells may be reused from now on."""
        running = self._running.pop(sequence, None)
        if running is None:
            self._waiting = [item for item in self._waiting if item.job.sequence != sequence]
            return
        running.slot.sequence = None
        running.slot.last_used = next(self._ticks)

    def forget_all(self) -> None:
        """Take everything out, and count on nothing that is in the cache."""
        self._waiting.clear()
        self._running.clear()
        for slot in self._slots:
            self._kv_cache.trim(slot.index, 0)
            slot.cells, slot.sequence = [], None

    def num_reusable(self, job: Job) -> int:
        """Return how much of a sequence's prompt is in a slot already."""
        return max(slot.num_reusable(job) for slot in self._slots)

    def next_step(self) -> list[Chunk]:
        """Return what to compute now, all under one adapter.

        The caller must compute it and call `record` for each, or `forget_all`.
        """
        self._admit()
        self._adapter = self._next_adapter()
        group = [running for running in self._running.values() if running.job.adapter == self._adapter]
        chunks = [
            Chunk(running, (running.next_token_id,), len(running.slot.cells), is_sampled=True)
            for running in group
            if running.next_token_id is not None
        ]
        room = self._max_step_tokens - len(chunks)
        if any(not running.is_in_prefill for running in self._running.values()):
            room = min(room, self.pace.max_tokens)
        chunks += self._prefill_chunks(group, room)
        return chunks

    def record(self, chunk: Chunk, next_token_id: int | None) -> None:
        """Take note that a chunk is in the cache, and of the token drawn after it."""
        chunk.running.slot.cells.extend(chunk.token_ids)
        chunk.running.next_token_id = next_token_id

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences with a slot."""
        return len(self._running)

    @property
    def num_cells_used(self) -> int:
        """Cells of running sequences."""
        return sum(len(slot.cells) for slot in self._slots if slot.sequence is not None)

    def _prefill_chunks(self, group: Iterable[Running], room: int) -> Iterable[Chunk]:
        scored_room = self._max_scored_tokens
        for running in group:
            job, position = running.job, len(running.slot.cells)
            end = min(len(job.prompt), position + (min(room, scored_room) if job.is_scored else room))
            if running.is_in_prefill and position < end:
                room -= end - position
                scored_room -= end - position if job.is_scored else 0
                yield Chunk(running, job.prompt[position:end], position, is_sampled=end == len(job.prompt))

    def _next_adapter(self) -> str:
        """Return the adapter whose turn it is: the next one in use, in the order of their keys."""
        adapters = sorted({running.job.adapter for running in self._running.values()})
        return next((adapter for adapter in adapters if adapter > self._adapter), adapters[0] if adapters else "")

    def _admit(self) -> None:
        if not self._waiting:
            return
        waiting: list[_Waiting] = []
        for item in self._waiting:
            if len(self._running) == len(self._slots) or self._is_shared_prefix_on_its_way(item):
                waiting.append(item)
            else:
                slot = self._take_slot(item.job)
                slot.sequence, slot.adapter = item.job.sequence, item.job.adapter
                self._running[item.job.sequence] = Running(item.job, slot, len(slot.cells), self._clock())
        self._waiting = waiting

    def _is_shared_prefix_on_its_way(self, item: _Waiting) -> bool:
        """Whether a running sequence will soon have computed more of the prompt than could be reused now.

        Nobody waits for ever: who is waited for has a slot and is in prefill, and a further wait is for a longer
        beginning. Prompts are compared once for each wait, since there may be many waiting.
        """
        leader = item.leader
        if leader is not None and self._running.get(leader.job.sequence) is leader and leader.is_in_prefill:
            return len(leader.slot.cells) < item.num_shared
        candidates = [
            running
            for running in self._running.values()
            if running.is_in_prefill and running.job.adapter == item.job.adapter
        ]
        if not candidates:
            return False
        item.leader = max(candidates, key=lambda running: item.job.num_reusable(running.job.prompt))
        item.num_shared = item.job.num_reusable(item.leader.job.prompt)
        return item.num_shared >= self.num_reusable(item.job) + MIN_COPIED_TOKENS

    def _take_slot(self, job: Job) -> _Slot:
        """Return a free slot whose cells are a beginning of the prompt, as long a one as is worth it."""
        common = {slot.index: slot.num_reusable(job) for slot in self._slots}
        free = [slot for slot in self._slots if slot.sequence is None]
        # Reuse in place, unless it would throw away more than it keeps.
        taken = max(free, key=lambda slot: common[slot.index])
        if 2 * common[taken.index] < len(taken.cells):
            taken = min(free, key=lambda slot: slot.last_used)
        num_kept = common[taken.index]
        source = max(self._slots, key=lambda slot: common[slot.index])
        if common[source.index] >= num_kept + MIN_COPIED_TOKENS:
            num_kept = common[source.index]
            taken = min(free, key=lambda slot: (slot is source, slot.last_used))
            if taken is not source:
                self._kv_cache.copy(source.index, taken.index)
                taken.cells = list(source.cells)
        self._kv_cache.trim(taken.index, num_kept)
        del taken.cells[num_kept:]
        return taken
