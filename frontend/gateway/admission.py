"""Admission to a model: a bound on completions, then a fair queue, and a refusal where the wait would be long.

Each completion of a request has a place of its own. So a request with many completions does not delay other requests.
The last places are kept for senders that have none. Otherwise a sender of long completions could hold all places for
minutes. The expected wait comes from the completion rate of the model while it is full.
"""

from __future__ import annotations

import asyncio
import math
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from frontend.errors import QueueFull, retry_headers
from frontend.gateway.types import AdmissionRequest
from frontend.protocol.priority import Priority

_MEMORY_S = 10.0  # full time; older completions count for less in the completion rate
_FIRST_S = 5.0  # full time in which possibly no completion has ended yet

_MAX_RETRY_S = 60.0
_MIN_RETRY_S = 0.1
_MAX_QUEUED = 2048  # bounds the memory of waiting requests
_PER_KEPT = 16  # one place, and one prompt token, in this many is kept for senders without a place
_MIN_PLACES = 4  # a model with fewer places keeps none: one would be too large a part
_RECENT_S = 60.0  # places are kept for this time after the latest request of a sender
# Of the maximum wait: a longer expected wait is refused at once, so that few requests time out.
_MAX_EXPECTED_SHARE = 0.5
# Each priority gets four times the share of the next lower one, so the lowest does not starve.
WEIGHTS = {Priority.LOW: 1.0, Priority.NORMAL: 4.0, Priority.HIGH: 16.0}


class CompletionRate:
    """Completions that end per second of full time: while the smallest request would have to wait.

    Completions and time both fade. So the estimate is right from the first seconds on, and falls while nothing ends.
    """

    def __init__(self) -> None:
        self._num_ended = 0.0
        self._full_s = 0.0
        self._counted_to_s: float | None = None  # None: the model is not full

    def advance(self, now_s: float, *, is_full: bool) -> None:
        """Count the time up to now, and note whether the model is full from now on."""
        if self._counted_to_s is not None and now_s > self._counted_to_s:
            elapsed_s = now_s - self._counted_to_s
            faded = math.exp(-elapsed_s / _MEMORY_S)
            self._num_ended *= faded
            self._full_s = self._full_s * faded + elapsed_s
        self._counted_to_s = now_s if is_full else None

    def end(self) -> None:
        """Count a completion that ended; while the model is not full, ignore it."""
        if self._counted_to_s is not None:
            self._num_ended += 1

    def wait_s(self, num_completions: int, num_running: int) -> float:
        """Estimated seconds until `num_completions` end at the recent rate.

        A burst arrives before a completion could end. So in the first seconds of full time, all running completions
        count as ended.
        """
        num_ended = max(self._num_ended, num_running) if self._full_s < _FIRST_S else self._num_ended
        return num_completions * self._full_s / max(1.0, num_ended)


type Flow = tuple[str, Priority]


@dataclass(frozen=True, slots=True, order=True)
class Entry[Item]:
    """A place in the queue. Entries sort in the order of service."""

    finish: float  # virtual time: cost per unit of weight
    number: int  # order of arrival
    start: float = field(compare=False)
    flow: Flow = field(compare=False)
    item: Item = field(compare=False)


class FairQueue[Item]:
    """A queue in which senders share the service equally, by the cost of their items and weighted by priority.

    Source: Golestani, "A self-clocked fair queueing scheme for broadband applications", 1994.
    """

    def __init__(self) -> None:
        self._entries: list[Entry[Item]] = []  # sorted
        self._finishes: dict[Flow, float] = {}  # the last entry's, by flow
        self._num_waiting: Counter[str] = Counter()  # entries of each sender
        self._now = 0.0  # virtual: the largest finish of an entry that was served
        self._num_entries = 0  # entries made since the start

    def __len__(self) -> int:
        return len(self._entries)

    def first(self, may_pass: Callable[[str], bool]) -> Entry[Item] | None:
        """Return the first entry with a sender that may pass; None if there is none."""
        if not any(map(may_pass, self._num_waiting)):  # the usual answer while one sender fills the queue
            return None
        return next(entry for entry in self._entries if may_pass(entry.flow[0]))

    def entry(self, item: Item, flow: Flow, cost: float) -> Entry[Item]:
        """Return the entry that an item would have now."""
        start = max(self._now, self._finishes.get(flow, 0.0))
        self._num_entries += 1
        return Entry(start + cost / WEIGHTS[flow[1]], self._num_entries, start, flow, item)

    def num_before(self, entry: Entry[Item]) -> int:
        """Return the number of entries that are served before this one."""
        return bisect_left(self._entries, entry)

    def push(self, entry: Entry[Item]) -> None:
        """Add an entry."""
        insort(self._entries, entry)
        self._num_waiting[entry.flow[0]] += 1
        self._finishes[entry.flow] = entry.finish

    def serve(self, entry: Entry[Item]) -> None:
        """Remove an entry, usually the first one, and count its cost."""
        self._pop(entry)
        self._now = max(self._now, entry.finish)
        self._forget_idle_flows()

    def remove(self, entry: Entry[Item]) -> None:
        """Remove an entry without service. Its flow does not pay for it if the entry is the flow's last."""
        self._pop(entry)
        if self._finishes.get(entry.flow) == entry.finish:
            self._finishes[entry.flow] = entry.start
        self._forget_idle_flows()

    def _pop(self, entry: Entry[Item]) -> None:
        self._entries.pop(self.num_before(entry))
        self._num_waiting[entry.flow[0]] -= 1
        if not self._num_waiting[entry.flow[0]]:
            del self._num_waiting[entry.flow[0]]

    def _forget_idle_flows(self) -> None:
        if not self._entries:
            self._now = 0.0
            self._finishes.clear()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one model."""

    max_in_flight: int  # completions of one replica; 0: the sequences that it decodes at a time
    max_in_flight_prompt_tokens: int  # estimated prompt tokens of one replica; 0: no bound
    max_queue_wait_s: float


@dataclass(slots=True)
class _Waiter:
    request: AdmissionRequest
    admitted: asyncio.Future[None]
    is_queued: bool = True


class Admission:
    """Admission to one model. Completions wait here in fair order, instead of in the engine's queue."""

    def __init__(self, bounds: Bounds, clock: Callable[[], float] = time.monotonic) -> None:
        self._bounds = bounds
        self._clock = clock
        self._queue: FairQueue[_Waiter] = FairQueue()
        self._completion_rate = CompletionRate()
        self._num_places = 1  # all ready replicas together, at the latest request
        self._max_prompt_tokens = 0  # all ready replicas together, at the latest request; 0: no bound
        self._seen_s: dict[str, float] = {}  # the latest request of each recent sender, in order of time
        self._running: Counter[str] = Counter()  # completions of each sender
        self.num_sequences = 0  # those in flight
        self.num_prompt_tokens = 0

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    async def enter(self, request: AdmissionRequest) -> None:
        """Wait until the completion may run. A cancelled caller has left the queue.

        Raises:
            QueueFull: the model has no room, and expects none in time.
        """
        self._num_places = (self._bounds.max_in_flight or request.max_sequences) * request.num_replicas
        self._max_prompt_tokens = self._bounds.max_in_flight_prompt_tokens * request.num_replicas
        self._see(request.sender)
        if self._queue:
            self._admit()  # a replica may have come back
        is_next = self._may_pass(request.sender) and self._queue.first(self._may_pass) is None
        if is_next and self._fits(request.num_prompt_tokens):
            self._occupy(request)
            self._count_time()
            return
        waiter = _Waiter(request, asyncio.get_running_loop().create_future())
        entry = self._queue.entry(waiter, (request.sender, request.priority), float(max(1, request.num_tokens)))
        if request.is_first:
            self._refuse_long_wait(entry)
        self._queue.push(entry)
        try:
            async with asyncio.timeout(self._bounds.max_queue_wait_s if request.is_first else None):
                await waiter.admitted
        except BaseException as exc:
            if waiter.is_queued:
                self._queue.remove(entry)
                self._admit()
            elif not waiter.admitted.cancelled():  # admitted in the same moment
                self.leave(request)
            if isinstance(exc, TimeoutError):
                raise self._refusal(f"no place within {self._bounds.max_queue_wait_s:g} s") from None
            raise

    def leave(self, request: AdmissionRequest) -> None:
        """End an admitted completion."""
        self._count_time()
        self._completion_rate.end()
        self._running[request.sender] -= 1
        if not self._running[request.sender]:
            del self._running[request.sender]
        self.num_sequences -= 1
        self.num_prompt_tokens -= request.num_prompt_tokens
        self._admit()

    def _fits(self, num_prompt_tokens: int) -> bool:
        """Return whether there is a place. Alone, every completion fits: otherwise a large one would wait forever."""
        return not self.num_sequences or (
            self.num_sequences < self._num_places
            and (not self._max_prompt_tokens or self.num_prompt_tokens + num_prompt_tokens <= self._max_prompt_tokens)
        )

    def _may_pass(self, sender: str) -> bool:
        """Return whether a sender may take free places and prompt tokens. A sender that is alone gets all of them."""
        is_scarce = self._num_places >= _MIN_PLACES and (
            self._num_places - self.num_sequences <= max(1, self._num_places // _PER_KEPT)
            or 0 < self._max_prompt_tokens * (1 - 1 / _PER_KEPT) < self.num_prompt_tokens
        )
        return not is_scarce or sender not in self._running or all(each == sender for each in self._seen_s)

    def _see(self, sender: str) -> None:
        now_s = self._clock()
        self._seen_s.pop(sender, None)
        self._seen_s[sender] = now_s
        while (first := next(iter(self._seen_s))) != sender and now_s - self._seen_s[first] > _RECENT_S:
            del self._seen_s[first]

    def _count_time(self) -> None:
        self._completion_rate.advance(self._clock(), is_full=bool(self._queue) or not self._fits(1))

    def _occupy(self, request: AdmissionRequest) -> None:
        self._running[request.sender] += 1
        self.num_sequences += 1
        self.num_prompt_tokens += request.num_prompt_tokens

    def _admit(self) -> None:
        """Admit completions while the first one fits. Only senders without a place may pass it, so it cannot starve."""
        while self._fits(0):
            entry = self._queue.first(self._may_pass)
            if entry is None or not self._fits(entry.item.request.num_prompt_tokens):
                break
            waiter = entry.item
            self._queue.serve(entry)
            waiter.is_queued = False
            if not waiter.admitted.cancelled():
                self._occupy(waiter.request)
                waiter.admitted.set_result(None)
        self._count_time()

    def _refuse_long_wait(self, entry: Entry[_Waiter]) -> None:
        """Refuse a request with a long expected wait. Only completions that are served before it count."""
        num_before = self._queue.num_before(entry)
        if num_before >= _MAX_QUEUED:
            raise self._refusal(f"{num_before} completions are waiting already")
        self._count_time()
        wait_s = self._completion_rate.wait_s(num_before + 1, self.num_sequences)
        if wait_s > _MAX_EXPECTED_SHARE * self._bounds.max_queue_wait_s:
            raise self._refusal(f"a place would take about {wait_s:.1f} s")

    def _refusal(self, reason: str) -> QueueFull:
        wait_s = self._completion_rate.wait_s(len(self._queue) + 1, self.num_sequences)
        retry_after_s = min(_MAX_RETRY_S, max(_MIN_RETRY_S, wait_s))
        return QueueFull(f"The model is at its limit: {reason}.", headers=retry_headers(retry_after_s))
