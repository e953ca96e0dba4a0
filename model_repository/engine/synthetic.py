"""Deterministic tokens at a set pace, without weights: to benchmark the other components, and to test faults."""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from model_repository.contract.request import EngineRequest
from model_repository.engine.queue_order import queue_order_s
from model_repository.engine.runtime import EngineConfig, Prepared, Runtime, RuntimeStats, StepOutput


@dataclass(frozen=True, slots=True)
class _Queued:
    queue_order_s: float
    sequence: int
    request: EngineRequest


@dataclass(slots=True)
class _Running:
    token_ids: Iterator[int]
    max_kv_tokens: int  # prompt tokens and completion tokens so far
    scheduled_s: float
    num_unread: int  # prompt tokens that are not read yet


class SyntheticRuntime(Runtime):
    """Emits the vocabulary's plain ASCII tokens in order, the same for every request, one per sequence and step.

    Options: `itl_ms`, the time between two steps (default 0: no pause); `prefill_tokens`, the number of prompt tokens
    that a sequence reads in a step (default 0: all); `num_tokens`, after which the end-of-generation token follows, but
    not before `min_tokens` (default 0: never, so `max_tokens` ends it).

    Args:
        config: `max_sequences` run at a time, the others wait.
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
        self._waiting: list[_Queued] = []  # sorted by queue order
        self._running: dict[int, _Running] = {}
        self._clock = clock
        self._sleep = sleep
        self._next_step_s = 0.0

    def submit(self, sequence: int, request: EngineRequest, prepared: Prepared | None = None) -> None:
        waiting = _Queued(queue_order_s(request, self._clock()), sequence, request)
        insort(self._waiting, waiting, key=lambda item: item.queue_order_s)

    def free(self, sequence: int, *, is_reusable: bool = True) -> None:
        if self._running.pop(sequence, None) is None:
            self._waiting = [item for item in self._waiting if item.sequence != sequence]

    def step(self) -> Sequence[StepOutput]:
        """Give every running sequence its next token."""
        if (wait_s := self._next_step_s - self._clock()) > 0:
            self._sleep(wait_s)
        self._next_step_s = self._clock() + self._itl_s
        while self._waiting and len(self._running) < self._max_sequences:
            admitted = self._waiting.pop(0)
            request = admitted.request
            token_ids = self._completion(request) if request.max_tokens else iter(())
            for _ in request.resumed_token_ids:
                next(token_ids)
            num_prompt_tokens = len(request.prompt_token_ids + request.replayed_token_ids)
            self._running[admitted.sequence] = _Running(token_ids, num_prompt_tokens, self._clock(), num_prompt_tokens)
        outputs = []
        for sequence, running in self._running.items():
            running.num_unread -= self._prefill_tokens
            if running.num_unread > 0:
                continue
            running.max_kv_tokens += 1
            outputs.append(StepOutput(sequence, next(running.token_ids, None), scheduled_s=running.scheduled_s))
        return outputs

    def _completion(self, request: EngineRequest) -> Iterator[int]:
        num_tokens = max(self._num_tokens, request.params.min_tokens) if self._num_tokens else 0
        num_emitted = 0
        while True:
            for token_id in self._text_token_ids:
                if num_tokens and num_emitted >= num_tokens:
                    yield self._eos_token_id
                num_emitted += 1
                yield token_id

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def stats(self) -> RuntimeStats:
        """Return the KV tokens in use and at most; one generated token is one KV token."""
        return RuntimeStats(
            num_active=len(self._running),
            num_waiting=len(self._waiting),
            num_kv_tokens_used=sum(running.max_kv_tokens for running in list(self._running.values())),
            max_kv_tokens=self._max_sequences * self._context_window,
        )

    def close(self) -> None:
        self._running.clear()
        self._waiting.clear()
