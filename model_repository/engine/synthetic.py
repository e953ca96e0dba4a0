"""Deterministic tokens at a set pace, without weights: for benchmarks of all that is around the engine, and faults."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from model_repository.contract.request import EngineRequest
from model_repository.engine.adapter_folder import Adapter
from model_repository.engine.runtime import EngineConfig, RuntimeStats, StepOutput
from model_repository.engine.token_constraint import TokenConstraint
from model_repository.engine.turns import turn_s
from model_repository.errors import Unsupported


@dataclass(frozen=True, slots=True)
class _Waiting:
    turn_s: float
    sequence: int
    request: EngineRequest


@dataclass(slots=True)
class _Running:
    token_ids: Iterator[int]
    num_cells: int  # prompt tokens and completion tokens so far
    scheduled_s: float
    num_unread: int  # prompt tokens


class SyntheticRuntime:
    """Emits the vocabulary's plain ASCII tokens in order, the same for every request, one per sequence and step.

    Options: `itl_ms`, the time between two steps (default 0: as fast as it goes); `prefill_tokens`, how many of its
    prompt's tokens a sequence reads in a step (default 0: all); `num_tokens`, after which the end-of-generation token
    follows, but not before `min_tokens` (default 0: never, so `max_tokens` ends it).

    Args:
        config: `max_sequences` run at a time, the others wait for their turn.
        byte_table: the bytes of each token id.
        sleep: waits for the rest of a step, in seconds.
    """

    def __init__(
        self,
        config: EngineConfig,
        byte_table: Sequence[bytes],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._itl_s = float(config.options.get("itl_ms", "0")) / 1e3
        self._prefill_tokens = int(config.options.get("prefill_tokens", "0")) or config.context_window
        self._num_tokens = int(config.options.get("num_tokens", "0"))
        self._eos_token_id = min(config.eos_token_ids)
        self._max_sequences = config.max_sequences
        self._context_window = config.context_window
        self._text_token_ids = [index for index, item in enumerate(byte_table) if item.isascii() and item.isalpha()]
        self._waiting: list[_Waiting] = []  # by their turns
        self._running: dict[int, _Running] = {}
        self._clock = clock
        self._sleep = sleep
        self._next_step_s = 0.0

    def prepare(self, request: EngineRequest) -> None:
        """Do nothing: it has no guides."""

    def submit(self, sequence: int, request: EngineRequest, constraint: TokenConstraint | None = None) -> None:
        """Queue a request."""
        waiting = _Waiting(turn_s(request, self._clock()), sequence, request)
        insort(self._waiting, waiting, key=lambda item: item.turn_s)

    def free(self, sequence: int) -> None:
        """Forget a sequence."""
        if self._running.pop(sequence, None) is None:
            self._waiting = [item for item in self._waiting if item.sequence != sequence]

    def step(self) -> Sequence[StepOutput]:
        """Give every running sequence its next token."""
        self._sleep(max(0.0, self._next_step_s - self._clock()))
        self._next_step_s = self._clock() + self._itl_s
        while self._waiting and len(self._running) < self._max_sequences:
            admitted = self._waiting.pop(0)
            request = admitted.request
            token_ids = self._completion(request.params.min_tokens) if request.max_tokens else iter(())
            num_prompt_tokens = len(request.prompt_token_ids)
            self._running[admitted.sequence] = _Running(token_ids, num_prompt_tokens, self._clock(), num_prompt_tokens)
        outputs = []
        for sequence, running in self._running.items():
            running.num_unread -= self._prefill_tokens
            if running.num_unread > 0:
                continue
            running.num_cells += 1
            outputs.append(StepOutput(sequence, next(running.token_ids, None), scheduled_s=running.scheduled_s))
        return outputs

    def _completion(self, min_tokens: int) -> Iterator[int]:
        num_tokens = max(self._num_tokens, min_tokens) if self._num_tokens else 0
        num_emitted = 0
        while True:
            for token_id in self._text_token_ids:
                if num_tokens and num_emitted >= num_tokens:
                    yield self._eos_token_id
                num_emitted += 1
                yield token_id

    def load_adapter(self, name: str, adapter: Adapter) -> None:
        """Refuse it."""
        raise Unsupported("the runtime synthetic takes no adapters")

    def unload_adapter(self, name: str) -> None:
        """Do nothing: there is none."""

    def wake(self) -> None:
        """Do nothing: a step is not put off."""

    @property
    def has_work(self) -> bool:
        """Whether any sequence is queued or running."""
        return bool(self._running or self._waiting)

    def stats(self) -> RuntimeStats:
        """Return what it holds; a cell is a token."""
        return RuntimeStats(
            num_active=len(self._running),
            num_waiting=len(self._waiting),
            num_cells_used=sum(running.num_cells for running in list(self._running.values())),
            num_cells=self._max_sequences * self._context_window,
        )

    def close(self) -> None:
        """Forget everything."""
        self._running.clear()
        self._waiting.clear()
