"""In-flight batching: chooses the sequences of the next step, their slots, and the KV tokens that they reuse.

A slot is one sequence's share of the KV cache: up to `context_window` tokens. The tokens of a finished sequence stay in
its slot until another sequence needs it. A prompt with the same beginning reuses them, if it has the same LoRA adapter
and the same salt. Tenants have different salts. Otherwise the time of an answer, or its number of cached tokens, would
tell one tenant what another one has asked.
"""

from __future__ import annotations

import itertools
import logging
import operator
import time
from bisect import insort
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from model_repository.contract.marks import first_marks
from model_repository.engine.prefill_budget import PrefillBudget
from model_repository.engine.prompt_lookup import PromptLookup

logger = logging.getLogger(__name__)

# Copying a prefix copies all tokens of its slot: fewer tokens are computed again just as fast.
MIN_COPIED_TOKENS = 32
_COMPARED_TOKENS = 512  # at once: a prompt of 32,000 known tokens is compared in a quarter of the time
# Drafted tokens fill a step up to this number. Its fixed cost is then a small part: further tokens would gain little,
# and a wrong one costs its whole share (docs/performance.md).
MAX_DECODED_TOKENS = 8


class KVCache(Protocol):
    """The operations of a KV cache that scheduling needs. Each takes effect before it returns."""

    def read(self, slot: int) -> bytes:
        """Return a copy of the slot's tokens."""

    def load(self, slot: int, state: bytes) -> None:
        """Replace the slot's tokens by a copy, which may come from another KV cache."""

    def can_trim(self, slot: int, num_tokens: int, *, is_copied: bool) -> bool:
        """Whether `trim` can keep the first `num_tokens` tokens of a slot.

        Args:
            is_copied: whether the tokens are then in a copy of the slot.
        """

    def trim(self, slot: int, num_tokens: int) -> None:
        """Free all but the first tokens of a slot."""

    def clear(self) -> None:
        """Free the tokens of all slots, and overwrite their numbers."""


def num_common_tokens(known: Sequence[int], wanted: Sequence[int]) -> int:
    """Return how many tokens two texts have in common at their beginnings."""
    end = min(len(known), len(wanted))
    for start in range(0, end, _COMPARED_TOKENS):
        part = slice(start, min(start + _COMPARED_TOKENS, end))
        pair = tuple(known[part]), tuple(wanted[part])
        if pair[0] != pair[1]:
            return start + operator.indexOf(map(operator.ne, *pair), True)
    return end


@dataclass(frozen=True, slots=True)
class ComputedPrompt:
    """A prompt with the KV cache of its beginning, which another process has computed."""

    token_ids: tuple[int, ...]  # the tokens of an image have a negative number that no other image has
    num_computed: int  # tokens in kv_state
    num_cached: int  # those of them that an earlier prompt computed
    kv_state: bytes


@dataclass(frozen=True, slots=True)
class Job:
    """A submitted sequence."""

    sequence: int
    prompt: Sequence[int]
    adapter: str = ""  # the key of its LoRA adapter; empty: no adapter
    cache_salt: str = ""
    is_scored: bool = False  # needs the logits of every prompt token, so each token must be computed
    queue_order_s: float = 0.0  # the order of waiting sequences; of equals, the earlier one is first
    computed: ComputedPrompt | None = None
    max_tokens: int = 0  # of the completion; drafts stay below it
    sender: str = ""
    marks: bytes = b""  # of the prompt: contract/marks.py
    keep_s: float = 0.0  # for which its tokens stay after its end

    @property
    def family(self) -> tuple[str, str]:
        """What two jobs must have in common so that one may reuse the other's tokens."""
        return self.adapter, self.cache_salt

    def num_reusable(self, token_ids: Sequence[int]) -> int:
        """Return how many of these computed tokens begin its prompt.

        The last prompt token is always computed, for its logits, and never counts.
        """
        if self.is_scored:
            return 0
        return min(num_common_tokens(token_ids, self.prompt), len(self.prompt) - 1)


@dataclass(slots=True)
class _Slot:
    index: int
    token_ids: list[int] = field(default_factory=list)  # the tokens in the KV cache
    family: tuple[str, str] = ("", "")  # Job.family of these tokens
    marks: bytes = b""  # of the prompt of these tokens
    num_prompt_tokens: int = 0  # of that prompt, also those that were not computed
    sequence: int | None = None  # the running sequence
    keeper: str = ""  # the sender for whom the tokens of the last prompt stay ...
    kept_until_s: float = 0.0  # ... until this time
    worth: int = 0  # the slot that is worth least is overwritten first
    last_used: int = 0  # of equals, the one that was used longest ago

    def num_common(self, job: Job) -> int:
        """Return how many of its tokens begin the prompt of a sequence that may reuse them."""
        return job.num_reusable(self.token_ids) if self.family == job.family else 0

    @property
    def num_kept_tokens(self) -> int:
        """Those of its last prompt, as far as it was computed."""
        return min(self.num_prompt_tokens, len(self.token_ids))

    def kept_marks(self) -> bytes:
        """Return the marks of the tokens, also of those that a running sequence will compute."""
        if self.sequence is not None:
            return self.marks
        return first_marks(self.marks, len(self.token_ids) / max(1, self.num_prompt_tokens))


@dataclass(slots=True)
class Running:
    """A sequence that has a slot."""

    job: Job
    slot: _Slot
    num_cached_tokens: int
    scheduled_s: float  # when it got the slot
    next_token_id: int | None = None  # drawn, not computed yet; None while in prefill
    lookup: PromptLookup | None = None  # of prompt and completion; None: no tokens are drafted

    @property
    def is_in_prefill(self) -> bool:
        """Whether prompt tokens are left to compute."""
        return self.next_token_id is None


@dataclass(slots=True)
class _QueuedJob:
    """A sequence without a slot."""

    job: Job
    leader: Running | None = None  # a sequence that is computing a beginning of its prompt ...
    num_shared: int = 0  # ... with this number of tokens


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens of one sequence for a step: a piece of the prompt in prefill, the next and drafted ones in decode."""

    running: Running
    token_ids: Sequence[int]
    position: int  # the first token's
    is_sampled: bool  # the next token is drawn, and one more behind each drafted token that was right
    num_drafted: int = 0  # drafted tokens at the end of token_ids


class Scheduler:
    """Admits in queue order, decodes every running sequence in every step, and fills up the step with prompts.

    A step computes sequences of one LoRA adapter; the adapters in use alternate. A sequence waits while another one is
    computing the same beginning of a prompt, to copy it then, and lets others pass. So `n` completions of one prompt
    compute it once.

    Args:
        max_step_tokens: the largest number of tokens in a step.
        max_scored_tokens: the same for tokens of scored prompts: to read their logits costs more than to compute them.
        prefill_budget: limits prompt tokens in a step with decoding sequences.
        has_drafts: whether steps also compute drafted tokens, if the KV cache can forget the wrong ones.
    """

    def __init__(
        self,
        num_slots: int,
        kv_cache: KVCache,
        *,
        max_step_tokens: int = 512,
        max_scored_tokens: int = 64,
        prefill_budget: PrefillBudget | None = None,
        has_drafts: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        # The computing thread reports the steps' durations to it.
        self.prefill_budget = prefill_budget or PrefillBudget()
        self._slots = [_Slot(index) for index in range(num_slots)]
        self._kv_cache = kv_cache
        self._max_step_tokens = max_step_tokens
        self._max_scored_tokens = max_scored_tokens
        self._waiting: list[_QueuedJob] = []  # sorted by queue order
        self._running: dict[int, Running] = {}
        self._ticks = itertools.count(1)
        self._lost_worth = 0  # of the slots that were overwritten, at most
        self._adapter = ""  # the last step's
        self._has_drafts = has_drafts
        self.num_draft_tokens = 0  # computed since the start
        self.num_accepted_tokens = 0  # those of them that were right

    def submit(self, job: Job) -> None:
        """Queue a sequence."""
        insort(self._waiting, _QueuedJob(job), key=lambda item: item.job.queue_order_s)

    def free(self, sequence: int, *, is_reusable: bool = True) -> None:
        """Remove a running or queued sequence; its tokens may be reused from now on.

        Args:
            is_reusable: False: its tokens are not finite. This must not be called while a step is computed then.
        """
        running = self._running.pop(sequence, None)
        if running is None:
            self._waiting = [item for item in self._waiting if item.job.sequence != sequence]
            return
        running.slot.sequence = None
        # A long prompt outlives many short ones, but not for ever (the rule GreedyDual, with its tokens as the price).
        running.slot.worth = self._lost_worth + len(running.slot.token_ids)
        running.slot.last_used = next(self._ticks)
        if not is_reusable:
            self._clear_idle()
        elif running.job.keep_s:
            self._keep(running.slot, running.job)

    def _keep(self, slot: _Slot, job: Job) -> None:
        """Keep the tokens of a prompt for a time. At most half of the slots are kept, in equal shares of senders."""
        now = self._clock()
        slot.keeper, slot.kept_until_s = job.sender, max(slot.kept_until_s, now + job.keep_s)
        kept = [each for each in self._slots if each.kept_until_s > now]
        while len(kept) > len(self._slots) // 2:
            counts = Counter(each.keeper for each in kept)
            most = max(counts.values())
            lost = min((each for each in kept if counts[each.keeper] == most), key=lambda each: each.kept_until_s)
            lost.kept_until_s = 0.0
            kept.remove(lost)

    def _clear_idle(self) -> None:
        """Empty the slots without a running sequence, and overwrite their numbers.

        A freed token is multiplied by 0 in attention without flash attention, and so is the state that a new sequence
        of a recurrent model begins with: NaN would stay NaN.
        """
        kept = {slot.index: self._kv_cache.read(slot.index) for slot in self._slots if slot.sequence is not None}
        self._kv_cache.clear()
        for slot in self._slots:
            if slot.index in kept:
                self._kv_cache.load(slot.index, kept[slot.index])
            else:
                slot.token_ids, slot.kept_until_s = [], 0.0

    def forget_all(self) -> None:
        """Remove all sequences, and all tokens of the KV cache."""
        self._waiting.clear()
        self._running.clear()
        for slot in self._slots:
            self._kv_cache.trim(slot.index, 0)
            slot.token_ids, slot.sequence, slot.kept_until_s = [], None, 0.0

    def num_reusable(self, job: Job) -> int:
        """Return the largest number of first tokens of a sequence's prompt that one slot has.

        The sequence may be able to reuse fewer. This may be called while a step is computed, when the KV cache cannot
        say how many it can keep.
        """
        return max(slot.num_common(job) for slot in self._slots)

    def kept_marks(self) -> list[bytes]:
        """Return the marks of each slot's prompt, from any thread."""
        return [slot.kept_marks() for slot in self._slots]

    def next_step(self, held: Container[int] = ()) -> list[Chunk]:
        """Return the chunks to compute now, all under one adapter.

        They are in the order of their slots. The caller must compute them and call `record` for each, or `forget_all`.

        Args:
            held: sequences that do not take part in the step.
        """
        self._admit()
        self._close_gaps()
        free = [running for number, running in self._running.items() if number not in held]
        self._adapter = self._next_adapter(free)
        group = [running for running in free if running.job.adapter == self._adapter]
        chunks = self._decode_chunks([running for running in group if not running.is_in_prefill])
        room = self._max_step_tokens - sum(len(chunk.token_ids) for chunk in chunks)
        if any(not running.is_in_prefill for running in self._running.values()):
            room = min(room, self.prefill_budget.max_tokens)
        chunks += self._prefill_chunks((running for running in group if running.is_in_prefill), room)
        return sorted(chunks, key=lambda chunk: chunk.running.slot.index)

    def record(self, chunk: Chunk, next_token_id: int | None, num_accepted: int = 0) -> None:
        """Record that a chunk is in the KV cache, and the token drawn after it. Wrong drafted tokens are forgotten.

        Args:
            num_accepted: drafted tokens of the chunk that were right.
        """
        running, num_wrong = chunk.running, chunk.num_drafted - num_accepted
        slot, end = running.slot, len(chunk.token_ids) - num_wrong
        slot.token_ids.extend(chunk.token_ids[:end])
        if num_wrong:
            self._kv_cache.trim(slot.index, len(slot.token_ids))
        running.next_token_id = next_token_id
        if running.lookup is not None and next_token_id is not None:
            for token_id in (*chunk.token_ids[end - num_accepted : end], next_token_id):
                running.lookup.append(token_id)
        self.num_draft_tokens += chunk.num_drafted
        self.num_accepted_tokens += num_accepted

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences with a slot."""
        return len(self._running)

    @property
    def num_kv_tokens_used(self) -> int:
        """KV tokens of running sequences."""
        return sum(len(slot.token_ids) for slot in self._slots if slot.sequence is not None)

    def _decode_chunks(self, decoding: Sequence[Running]) -> list[Chunk]:
        """Return chunks of one length: llama.cpp would read all weights again for the further tokens of longer ones."""
        num_drafted = max(0, MAX_DECODED_TOKENS // max(1, len(decoding)) - 1)
        drafts: list[Sequence[int]] = []
        for running in decoding:
            drafts.append(self._draft(running, num_drafted) if num_drafted else ())
            num_drafted = len(drafts[-1])
        chunks: list[Chunk] = []
        for running, draft in zip(decoding, drafts, strict=True):
            assert running.next_token_id is not None, "it decodes"
            token_ids = running.next_token_id, *draft[:num_drafted]
            chunks.append(Chunk(running, token_ids, len(running.slot.token_ids), True, num_drafted))
        return chunks

    def _draft(self, running: Running, max_tokens: int) -> Sequence[int]:
        if running.lookup is None or not self._has_drafts:
            return ()
        job, slot, num_computed = running.job, running.slot, len(running.slot.token_ids)
        num_left = len(job.prompt) + job.max_tokens - num_computed - 1  # tokens to draw
        drafted = running.lookup.draft(min(max_tokens, num_left - 1))
        # Drafted tokens are forgotten just like the last computed one.
        if drafted and not self._kv_cache.can_trim(slot.index, num_computed - 1, is_copied=False):
            logger.warning("speculation is off: the KV cache of this model cannot forget wrong tokens")
            self._has_drafts = False
            return ()
        return drafted

    def _prefill_chunks(self, group: Iterable[Running], room: int) -> Iterable[Chunk]:
        scored_room = self._max_scored_tokens
        followers = [item for item in self._waiting if item.leader is not None]
        prefilling = list(group)
        # The first prompts of all senders share the room: none waits for the long prompts of another sender.
        first_of = {running.job.sender: running for running in reversed(prefilling)}
        firsts = sorted(first_of.values(), key=lambda each: len(each.job.prompt) - len(each.slot.token_ids))
        others = (running for running in prefilling if running is not first_of[running.job.sender])
        for index, running in enumerate(itertools.chain(firsts, others)):
            share = room // max(1, len(firsts) - index)
            job, position = running.job, len(running.slot.token_ids)
            end = min(len(job.prompt), position + (min(share, scored_room) if job.is_scored else share))
            # Not all KV caches can be cut behind the shared tokens: a copy is made when there are no others yet.
            shared = (item.num_shared for item in followers if item.leader is running)
            end = min((num_shared for num_shared in shared if position < num_shared < end), default=end)
            if position < end:
                room -= end - position
                scored_room -= end - position if job.is_scored else 0
                yield Chunk(running, job.prompt[position:end], position, is_sampled=end == len(job.prompt))

    def _next_adapter(self, running: Iterable[Running]) -> str:
        """Return the next adapter of sequences, in the order of the adapters' keys."""
        adapters = sorted({each.job.adapter for each in running})
        return next((adapter for adapter in adapters if adapter > self._adapter), adapters[0] if adapters else "")

    def _admit(self) -> None:
        if not self._waiting:
            return
        waiting: list[_QueuedJob] = []
        for item in self._waiting:
            is_full = len(self._running) == len(self._slots)
            if is_full or self._is_shared_prefix_in_prefill(item) or not (free := self._free_slots(item.job)):
                waiting.append(item)
            else:
                slot, num_cached = self._claim_slot(item.job, free)
                slot.sequence, slot.family = item.job.sequence, item.job.family
                slot.marks, slot.num_prompt_tokens = item.job.marks, len(item.job.prompt)
                lookup = None
                if self._has_drafts:
                    lookup = PromptLookup(item.job.prompt, len(item.job.prompt) + item.job.max_tokens)
                self._running[item.job.sequence] = Running(item.job, slot, num_cached, self._clock(), lookup=lookup)
        self._waiting = waiting

    def _close_gaps(self) -> None:
        """Move the running sequences to adjacent slots.

        llama.cpp computes ascending, adjacent slots together, and reads all weights again for each further group.
        """
        num_busy = len(self._running)
        indexes = [running.slot.index for running in self._running.values()]
        if not indexes or max(indexes) - min(indexes) + 1 == num_busy:
            return
        starts = range(len(self._slots) - num_busy + 1)
        start = max(starts, key=lambda start: sum(start <= index < start + num_busy for index in indexes))
        places = range(start, start + num_busy)
        gaps = [slot for slot in self._slots if slot.sequence is None and slot.index in places]
        strays = [slot for slot in self._slots if slot.sequence is not None and slot.index not in places]
        for gap, stray in zip(gaps, strays, strict=True):
            kept, moved = self._kv_cache.read(gap.index), self._kv_cache.read(stray.index)
            self._kv_cache.load(gap.index, moved)
            self._kv_cache.load(stray.index, kept)
            gap.index, stray.index = stray.index, gap.index

    def _is_shared_prefix_in_prefill(self, item: _QueuedJob) -> bool:
        """Whether a running sequence will soon have computed more of the prompt than can be reused now.

        No wait is endless: the leader has a slot and is in prefill, and each further wait is for a longer beginning.
        Prompts are compared once for each wait, since many sequences may wait.
        """
        leader = item.leader
        if leader is not None and self._running.get(leader.job.sequence) is leader and leader.is_in_prefill:
            return len(leader.slot.token_ids) < item.num_shared
        candidates = [
            running
            for running in self._running.values()
            if running.is_in_prefill and running.job.family == item.job.family
        ]
        if not candidates:
            return False
        item.leader = max(candidates, key=lambda running: item.job.num_reusable(running.job.prompt))
        item.num_shared = item.job.num_reusable(item.leader.job.prompt)
        num_kept = max(
            self._num_kept(slot, slot.num_common(item.job), is_copied=slot.sequence is not None) for slot in self._slots
        )
        return item.num_shared >= num_kept + MIN_COPIED_TOKENS

    def _num_kept(self, slot: _Slot, num_common: int, *, is_copied: bool) -> int:
        """Return how many of these first tokens of a slot, or of its copy, can be reused: all or none."""
        can_keep = num_common > 0 and self._kv_cache.can_trim(slot.index, num_common, is_copied=is_copied)
        return num_common if can_keep else 0

    def _free_slots(self, job: Job) -> list[_Slot]:
        """Return the free slots that a sequence may get. A kept slot needs a prompt that begins with its tokens."""
        now = self._clock()
        return [
            slot
            for slot in self._slots
            if slot.sequence is None and (slot.kept_until_s <= now or slot.num_common(job) >= slot.num_kept_tokens - 1)
        ]

    def _claim_slot(self, job: Job, free: Sequence[_Slot]) -> tuple[_Slot, int]:
        """Return a free slot with the longest reusable beginning of the prompt, if the reuse pays, and its length."""
        common = [(slot, slot.num_common(job)) for slot in self._slots]
        in_place, copied = (
            {slot.index: self._num_kept(slot, num_common, is_copied=is_copied) for slot, num_common in common}
            for is_copied in (False, True)
        )
        # Reuse in place, unless that would discard more tokens than it keeps.
        claimed = max(free, key=lambda slot: in_place[slot.index])
        if 2 * in_place[claimed.index] < len(claimed.token_ids):
            claimed = self._overwritten(free)
        num_kept = in_place[claimed.index]
        source = max(self._slots, key=lambda slot: copied[slot.index])
        if copied[source.index] >= num_kept + MIN_COPIED_TOKENS:
            num_kept = copied[source.index]
            claimed = self._overwritten([slot for slot in free if slot is not source] or free)
            if claimed is not source:
                self._kv_cache.load(claimed.index, self._kv_cache.read(source.index))
                claimed.token_ids = list(source.token_ids)
        self._kv_cache.trim(claimed.index, num_kept)
        del claimed.token_ids[num_kept:]
        computed = job.computed
        if computed is not None and num_kept < computed.num_computed:
            self._kv_cache.load(claimed.index, computed.kv_state)
            claimed.token_ids = list(job.prompt[: computed.num_computed])
            num_kept = max(num_kept, computed.num_cached)
        return claimed, num_kept

    def _overwritten(self, free: Iterable[_Slot]) -> _Slot:
        """Return the slot that will lose its tokens."""
        now = self._clock()
        slot = min(free, key=lambda slot: (slot.kept_until_s > now, slot.worth, slot.last_used))
        self._lost_worth = max(self._lost_worth, slot.worth)
        return slot
