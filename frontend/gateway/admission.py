"""Admission to a model: bounded in flight, a fair queue of bounded time before it, a refusal at once beyond it.

The expected wait comes from the rate at which a full model finishes completions.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from frontend.errors import QueueFull
from frontend.gateway.fair_queue import Entry, FairQueue
from frontend.gateway.headers import rate_headers
from frontend.gateway.rates import Rates
from frontend.gateway.types import AdmissionRequest, Lease

_MEMORY_S = 10.0  # of full time: older completions count for less in the completion rate
_FIRST_S = 5.0  # of full time: no completion may have ended yet

_MAX_RETRY_S = 60.0
_MIN_RETRY_S = 0.1
_MAX_QUEUED = 2048  # requests; each of them takes memory
_HOPE = 0.5  # of the maximum wait: a request with a longer expected wait is refused at once, so that few wait in vain


class CompletionRate:
    """Completions that end per second while all places are taken; no other time counts.

    Events and time both fade, so the estimate is right from the first seconds on, and falls while nothing ends.
    """

    def __init__(self) -> None:
        self._num_ended = 0.0
        self._full_s = 0.0
        self._at_s: float | None = None  # up to when the current full time is counted; None: it is not full

    def advance(self, now_s: float, *, is_full: bool) -> None:
        """Say whether all places are taken from now on."""
        if self._at_s is not None and now_s > self._at_s:
            elapsed_s = now_s - self._at_s
            faded = math.exp(-elapsed_s / _MEMORY_S)
            self._num_ended *= faded
            self._full_s = self._full_s * faded + elapsed_s
        self._at_s = now_s if is_full else None

    def ended(self, num_completions: int) -> None:
        """Count completions that have ended; they count only while all places are taken."""
        if self._at_s is not None:
            self._num_ended += num_completions

    def wait_s(self, num_completions: int, num_running: int) -> float:
        """Estimated seconds until `num_completions` have ended at the recent rate.

        A burst arrives before any completion could end. So during the first seconds of full time the estimate assumes
        that all running completions end now.
        """
        num_ended = max(self._num_ended, num_running) if self._full_s < _FIRST_S else self._num_ended
        return num_completions * self._full_s / max(1.0, num_ended)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of a model's work may be in flight, and how long a request may wait for its turn."""

    max_in_flight: int  # completions of one replica at a time; 0: as many as it decodes at a time
    max_in_flight_prompt_tokens: int  # their prompts, estimated; 0: no bound
    max_queue_wait_s: float


@dataclass(slots=True)
class _Waiter:
    request: AdmissionRequest
    turn: asyncio.Future[None]
    is_queued: bool = False
    is_admitted: bool = False


class Admission:
    """Admission to one model. Requests wait here, in fair order, and not in the engine's own queue."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float] = time.monotonic) -> None:
        self._bounds = bounds
        self._clock = clock
        self._queue: FairQueue[_Waiter] = FairQueue()
        self._completion_rate = CompletionRate()
        self._num_replicas = 1  # ready replicas at the latest request
        self._replica_sequences = 1  # sequences that one replica decodes at a time
        self.num_requests = 0  # in flight
        self.num_sequences = 0
        self.num_prompt_tokens = 0

    @property
    def num_queued(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    async def enter(self, request: AdmissionRequest) -> None:
        """Wait for a place, for the maximum wait at most. Who is cancelled meanwhile has left the queue.

        Raises:
            QueueFull: there is no place, and there will be none in time.
        """
        self._num_replicas, self._replica_sequences = request.num_replicas, request.max_sequences
        if self._queue:
            self._let_in()  # where a replica has come back
        if not self._queue and self._has_room(request):
            self._occupy(request)
            self._count_time()
            return
        waiter = _Waiter(request, asyncio.get_running_loop().create_future())
        entry = self._queue.entry(waiter, (request.key, request.priority), float(max(1, request.num_tokens)))
        self._refuse_hopeless(entry)
        self._queue.push(entry)
        waiter.is_queued = True
        try:
            async with asyncio.timeout(self._bounds.max_queue_wait_s):
                await waiter.turn
        except BaseException as exc:
            self._abandon(entry)
            if isinstance(exc, TimeoutError):
                raise self._refusal(f"no place within {self._bounds.max_queue_wait_s:g} s") from None
            raise

    def leave(self, request: AdmissionRequest) -> None:
        """Give a place back."""
        self._count_time()
        self._completion_rate.ended(request.num_sequences)
        self.num_requests -= 1
        self.num_sequences -= request.num_sequences
        self.num_prompt_tokens -= request.num_prompt_tokens
        self._let_in()

    def _has_room(self, request: AdmissionRequest) -> bool:
        """Whether a request fits beside those in flight; alone, any does: what is too large is not refused for ever."""
        return not self.num_requests or self._fits(request.num_sequences, request.num_prompt_tokens)

    def _fits(self, num_sequences: int, num_prompt_tokens: int) -> bool:
        max_sequences = (self._bounds.max_in_flight or self._replica_sequences) * self._num_replicas
        max_prompt_tokens = self._bounds.max_in_flight_prompt_tokens * self._num_replicas
        return self.num_sequences + num_sequences <= max_sequences and (
            not max_prompt_tokens or self.num_prompt_tokens + num_prompt_tokens <= max_prompt_tokens
        )

    def _count_time(self) -> None:
        """Tell the completion rate what time it is, and whether from now on the smallest request would have to wait."""
        self._completion_rate.advance(self._clock(), is_full=bool(self._queue) or not self._fits(1, 1))

    def _occupy(self, request: AdmissionRequest) -> None:
        self.num_requests += 1
        self.num_sequences += request.num_sequences
        self.num_prompt_tokens += request.num_prompt_tokens

    def _let_in(self) -> None:
        """Admit those who are next, as long as the first of them fits: nobody passes it, so it is not starved."""
        while self._queue and self._has_room(self._queue.first().item.request):
            waiter = self._queue.pop()
            waiter.is_queued = False
            if not waiter.turn.done():
                self._occupy(waiter.request)
                waiter.is_admitted = True
                waiter.turn.set_result(None)
        self._count_time()

    def _refuse_hopeless(self, entry: Entry[_Waiter]) -> None:
        """Refuse one who would wait too long; who comes after it, but is served before it, is not counted."""
        num_before = self._queue.num_before(entry)
        if num_before >= _MAX_QUEUED:
            raise self._refusal(f"{num_before} requests are waiting already")
        self._count_time()
        wait_s = self._completion_rate.wait_s(num_before + 1, self.num_sequences)
        if wait_s > _HOPE * self._bounds.max_queue_wait_s:
            raise self._refusal(f"a place would take about {wait_s:.1f} s")

    def _abandon(self, entry: Entry[_Waiter]) -> None:
        """Forget one who does not wait any more, wherever its end finds it."""
        waiter = entry.item
        if waiter.is_admitted:
            self.leave(waiter.request)
        elif waiter.is_queued:
            self._queue.remove(entry)
            waiter.is_queued = False
            self._let_in()

    def _refusal(self, reason: str) -> QueueFull:
        wait_s = self._completion_rate.wait_s(len(self._queue) + 1, self.num_sequences)
        retry_after_s = min(_MAX_RETRY_S, max(_MIN_RETRY_S, wait_s))
        return QueueFull(f"The model is at its limit: {reason}.", retry_after_s=retry_after_s)


class LocalLimiter:
    """Decides in this process.

    Args:
        rates: of the keys; they may be kept elsewhere.
        bounds_of: a model's.
    """

    def __init__(self, rates: Rates, bounds_of: Callable[[str], Bounds]) -> None:
        self._rates = rates
        self._bounds_of = bounds_of
        self._admissions: dict[str, Admission] = {}  # by model

    @property
    def admissions(self) -> Mapping[str, Admission]:
        """What is in flight and what waits, of each model that was asked for."""
        return self._admissions

    async def acquire(self, request: AdmissionRequest) -> Lease:
        """Wait until the request may go on; see Limiter."""
        lease_id = secrets.token_hex(8) if request.scopes else ""
        readings = await self._rates.take(lease_id, request) if request.scopes else ()
        if request.num_sequences:
            try:
                await self._admission(request.model).enter(request)
            except BaseException as exc:
                if request.scopes:
                    self._rates.undo(lease_id, request)
                if isinstance(exc, QueueFull):
                    exc.headers = {**exc.headers, **rate_headers(readings)}
                raise
        return Lease(lease_id, request, readings)

    def release(self, lease: Lease, num_tokens: int) -> None:
        """Give back what a request held; see Limiter."""
        if lease.request.num_sequences:
            self._admission(lease.request.model).leave(lease.request)
        if lease.request.scopes:
            self._rates.settle(lease.id, lease.request, num_tokens)

    async def close(self) -> None:
        """Let go of the rates' connections."""
        await self._rates.close()

    def _admission(self, model: str) -> Admission:
        admission = self._admissions.get(model)
        if admission is None:
            admission = self._admissions[model] = Admission(self._bounds_of(model))
        return admission
