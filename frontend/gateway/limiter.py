"""The decision whether a request may run: first the limits of its key, then the bounds of its model."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from frontend.errors import QueueFull, RateLimited
from frontend.gateway.admission import Admission, Bounds
from frontend.gateway.counters import Amounts, MemoryCounters, counters_of
from frontend.gateway.headers import rate_headers
from frontend.gateway.outage import OnFailure
from frontend.gateway.policy import Policy
from frontend.gateway.types import AdmissionRequest, Lease, Reading
from frontend.settings import Settings

if TYPE_CHECKING:
    from frontend.gateway.redis_counters import RedisCounters


class LocalLimiter:
    """A limiter that decides in this process.

    Args:
        counters: the counts of the keys; replicas may share them.
        bounds_of: returns the bounds of a model.
    """

    def __init__(self, counters: MemoryCounters | RedisCounters, bounds_of: Callable[[str], Bounds]) -> None:
        self._counters = counters
        self._bounds_of = bounds_of
        self._process_id = secrets.token_hex(8)
        self._numbers = itertools.count()
        self.admissions: dict[str, Admission] = {}  # key: model

    async def acquire(self, request: AdmissionRequest) -> Lease:
        """Charge a request, and wait until the completion may run. A cancelled caller holds nothing.

        Raises:
            RateLimited: a limit of the key is reached.
            QueueFull: the model has no room, and expects none in time.
            LimitsUnavailable: Redis does not answer, and requests must not run uncounted.
        """
        lease_id = f"{self._process_id}-{next(self._numbers)}" if request.scopes else ""
        readings: tuple[Reading, ...] = ()
        try:
            if lease_id:
                readings = await self._charge(lease_id, request)
            if request.model:
                if request.model not in self.admissions:
                    self.admissions[request.model] = Admission(self._bounds_of(request.model))
                await self.admissions[request.model].enter(request)
        except RateLimited:
            raise  # the request was not charged
        except BaseException as exc:
            self._settle(lease_id, request, Amounts(-1, -request.num_charged_tokens, -request.num_completions))
            if isinstance(exc, QueueFull):
                exc.headers = {**exc.headers, **rate_headers(readings)}
            raise
        return Lease(lease_id, request, readings)

    def leave(self, lease: Lease) -> None:
        """Give the completion's place to the next one; its charge stays. It neither waits nor fails."""
        if lease.request.model and lease.has_place:
            lease.has_place = False
            self.admissions[lease.request.model].leave(lease.request)

    def release(self, lease: Lease, num_tokens: int) -> None:
        """End the request and charge the tokens that it used. It neither waits nor fails."""
        self.leave(lease)
        request = lease.request
        self._settle(lease.id, request, Amounts(0, num_tokens - request.num_charged_tokens, -request.num_completions))

    async def close(self) -> None:
        """Close connections and end tasks."""
        await self._counters.close()

    async def _charge(self, lease_id: str, request: AdmissionRequest) -> tuple[Reading, ...]:
        counters = counters_of(request.scopes)
        amounts = Amounts(1, request.num_charged_tokens, request.num_completions)
        refused, used = await self._counters.charge(lease_id, counters, amounts)
        readings = tuple(
            Reading(counter.resource, counter.limit, used_s)
            for counter, used_s in zip(counters, used, strict=False)  # `used` is empty if the request is not counted
            if counter.is_rate
        )
        if refused is not None:
            raise counters[refused].refusal(used[refused], amounts, readings)
        return readings

    def _settle(self, lease_id: str, request: AdmissionRequest, amounts: Amounts) -> None:
        if lease_id:
            self._counters.settle(lease_id, counters_of(request.scopes), amounts)


def local_limiter(settings: Settings) -> LocalLimiter:
    """Return a limiter that keeps its counts in Redis, or without one in memory."""
    counters: MemoryCounters | RedisCounters = MemoryCounters()
    if settings.redis_url:
        from frontend.gateway.redis_counters import RedisCounters  # it imports a large library

        host = urlsplit(settings.redis_url).hostname or "on a Unix socket"
        counters = RedisCounters(settings.redis_url, f"Redis {host}", OnFailure(settings.limits_on_failure))
    return LocalLimiter(counters, Policy(settings).bounds)
