"""Rates and concurrency of keys.

A rate is one number: the time at which its whole limit is available again. A request moves this time on by the seconds
in which the rate allows its amount, and fits if the time is then at most a minute ahead. So a rate is a token bucket of
one minute's worth (the generic cell rate algorithm, ITU-T I.371).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct

from frontend.errors import RateLimited, retry_headers
from frontend.gateway.headers import rate_headers
from frontend.gateway.types import MINUTE_S, ROUNDING_S, Reading, Scope

MAX_USED_S = 61 * MINUTE_S  # the largest debt is an hour's worth: completions without a limit are long
_CONCURRENCY_RETRY_S = 1.0  # the end of a running request is unknown


class Amounts(NamedTuple):
    """The amounts of one request; negative ones are given back."""

    requests: int
    tokens: int
    concurrency: int


class Counter(Struct, frozen=True):
    """One limit of one scope."""

    scope: Scope
    resource: str  # a field of Amounts
    limit: int
    name: str
    is_rate: bool
    unit: float  # use by an amount of 1: seconds of a rate, or one running completion
    capacity: float  # largest use

    def use(self, amounts: Amounts) -> float:
        return self.unit * float(getattr(amounts, self.resource))

    def refusal(self, used: float, amounts: Amounts, readings: Sequence[Reading]) -> RateLimited:
        """Return the error of a request that does not fit."""
        retry_after_s: float | None = used + self.use(amounts) - MINUTE_S
        amount = getattr(amounts, self.resource)
        if amount > self.limit:
            retry_after_s = None
            allowed = (
                f"{self.resource}, and {self.limit} a minute" if self.is_rate else f"completions, and {self.limit}"
            )
            rule = f"the request counts as {amount} {allowed} are allowed: it can never fit"
        elif not self.is_rate:
            retry_after_s = _CONCURRENCY_RETRY_S
            rule = f"the limit of {self.limit} completions at a time is reached"
        else:
            rule = f"the limit of {self.limit} {self.resource} a minute is reached; try again in {retry_after_s:.3f} s"
        code = self.resource if self.is_rate else "requests"
        headers = rate_headers(readings) | retry_headers(retry_after_s)
        return RateLimited(f"{self.scope}: {rule}", code=code, headers=headers)


@functools.lru_cache(maxsize=4096)
def counters_of(scopes: tuple[Scope, ...]) -> tuple[Counter, ...]:
    """Return the counters of the scopes, rates first."""
    rates, places = [], []
    for scope in scopes:
        name = f"{{{scope.key}}}:{scope.model}"  # the braces keep all counters of a key on one node of Redis Cluster
        for rate, limit in (("requests", scope.limits.requests_per_minute), ("tokens", scope.limits.tokens_per_minute)):
            if limit:
                unit, capacity = MINUTE_S / limit, MINUTE_S + ROUNDING_S
                rates.append(Counter(scope, rate, limit, f"{name}:{rate}", True, unit, capacity))
        if limit := scope.limits.max_concurrent:
            places.append(Counter(scope, "concurrency", limit, f"{name}:concurrency", False, 1.0, limit))
    return (*rates, *places)


class ChargeResult(NamedTuple):
    """The answer to a charge."""

    refused: int | None  # index of the first counter without room; None: all were charged
    used: Sequence[float]  # seconds or requests used, by counter; empty: the request is not counted


class MemoryCounters:
    """Counts in this process. They take memory for each key and model that was used."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._values: dict[str, float] = {}  # a rate's: when its whole limit is available; else requests in flight

    async def charge(self, lease_id: str, counters: Sequence[Counter], amounts: Amounts) -> ChargeResult:
        """Charge all counters, or no counter if one has no room."""
        now_s = self._clock()
        used = [self._used(counter, now_s) for counter in counters]
        for index, counter in enumerate(counters):
            if used[index] + counter.use(amounts) > counter.capacity:
                return ChargeResult(index, used)
        return ChargeResult(None, [self._add(counter, amounts, now_s) for counter in counters])

    def settle(self, lease_id: str, counters: Sequence[Counter], amounts: Amounts) -> None:
        """Charge all counters, with or without room."""
        now_s = self._clock()
        for counter in counters:
            self._add(counter, amounts, now_s)

    async def close(self) -> None:
        """Do nothing: only the counts in Redis need it."""

    def _used(self, counter: Counter, now_s: float) -> float:
        value = self._values.get(counter.name, 0.0)
        return min(MAX_USED_S, max(0.0, value - now_s)) if counter.is_rate else value

    def _add(self, counter: Counter, amounts: Amounts, now_s: float) -> float:
        used = max(0.0, self._used(counter, now_s) + counter.use(amounts))
        if counter.is_rate:
            used = min(MAX_USED_S, used)
        self._values[counter.name] = now_s + used if counter.is_rate else used
        return used
