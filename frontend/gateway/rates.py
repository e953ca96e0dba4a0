"""Rates and concurrency of each key: what may be taken now, kept in this process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from frontend.errors import RateLimited
from frontend.gateway.headers import rate_headers
from frontend.gateway.types import AdmissionRequest, Reading, Resource, Scope

_MINUTE_S = 60.0

_CONCURRENT_RETRY_S = 1.0  # nobody knows when one of a key's own requests ends


@dataclass(slots=True)
class Bucket:
    """What is left of a rate. It is full at the beginning, and holds a minute's worth.

    A settlement may leave it in debt, by a minute's worth at most: nobody is locked out for longer than that again.
    """

    per_minute: int  # above 0
    level: float
    at_s: float  # when the level was that

    @classmethod
    def full(cls, per_minute: int, now_s: float) -> Bucket:
        """Return a new one."""
        return cls(per_minute, float(per_minute), now_s)

    def refill(self, per_minute: int, now_s: float) -> None:
        """Bring the level to now; the rate may have been changed meanwhile."""
        elapsed_s = max(0.0, now_s - self.at_s)  # a clock that goes back refills nothing
        self.per_minute = per_minute
        self.level = min(float(per_minute), self.level + elapsed_s * per_minute / _MINUTE_S)
        self.at_s = max(self.at_s, now_s)

    def wait_s(self, amount: float) -> float:
        """Return how long it takes until so much is there: 0 where it is. Only what can ever fit gets there."""
        return max(0.0, amount - self.level) * _MINUTE_S / self.per_minute

    def add(self, amount: float) -> None:
        """Put back, or take away where it is negative, within a minute's worth of debt and what the bucket holds."""
        self.level = min(float(self.per_minute), max(-float(self.per_minute), self.level + amount))

    @property
    def reset_s(self) -> float:
        """How long it takes until it is full."""
        return self.wait_s(self.per_minute)


class Rates(Protocol):
    """Where rates are kept."""

    async def take(self, lease_id: str, request: AdmissionRequest) -> tuple[Reading, ...]:
        """Charge a request with its estimate, in every scope or in none.

        Raises:
            RateLimited: one of the scopes has no room.
        """

    def settle(self, lease_id: str, request: AdmissionRequest, num_tokens: int) -> None:
        """End a request: charge what it used instead of the estimate."""

    def undo(self, lease_id: str, request: AdmissionRequest) -> None:
        """End a request that was never served: it costs nothing."""

    async def close(self) -> None:
        """Let go of connections and tasks."""


@dataclass(slots=True)
class _Account:
    """What one scope has used."""

    requests: Bucket | None = None
    tokens: Bucket | None = None
    num_concurrent: int = 0


class MemoryRates:
    """Rates in this process: one account for each scope in use, as many as there are keys times models at most."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    async def take(self, lease_id: str, request: AdmissionRequest) -> tuple[Reading, ...]:
        """Charge a request with its estimate; see Rates."""
        now_s = self._clock()
        accounts = [self._account(scope, now_s) for scope in request.scopes]
        for scope, account in zip(request.scopes, accounts, strict=True):
            for resource, bucket, amount in _charges(account, request.num_tokens):
                if bucket is not None and bucket.level < amount:
                    readings = _readings(accounts)
                    raise refusal(scope, resource, amount, bucket.per_minute, bucket.wait_s(amount), readings)
            if account.num_concurrent >= (scope.limits.max_concurrent or math.inf):
                raise too_many_at_a_time(scope, _readings(accounts))
        for account in accounts:
            account.num_concurrent += 1
            for _, bucket, amount in _charges(account, request.num_tokens):
                if bucket is not None:
                    bucket.add(-amount)
        return _readings(accounts)

    def settle(self, lease_id: str, request: AdmissionRequest, num_tokens: int) -> None:
        """End a request; see Rates."""
        self._end(request, {Resource.TOKENS: request.num_tokens - num_tokens})

    def undo(self, lease_id: str, request: AdmissionRequest) -> None:
        """End a request that was never served; see Rates."""
        self._end(request, {Resource.TOKENS: request.num_tokens, Resource.REQUESTS: 1})

    async def close(self) -> None:
        """Do nothing."""

    def _end(self, request: AdmissionRequest, given_back: Mapping[Resource, int]) -> None:
        now_s = self._clock()
        for scope in request.scopes:
            account = self._account(scope, now_s)
            account.num_concurrent = max(0, account.num_concurrent - 1)
            if account.tokens is not None:
                account.tokens.add(given_back.get(Resource.TOKENS, 0))
            if account.requests is not None:
                account.requests.add(given_back.get(Resource.REQUESTS, 0))

    def _account(self, scope: Scope, now_s: float) -> _Account:
        """Return a scope's account as it is now, by the limits of now."""
        account = self._accounts.get(scope.name)
        if account is None:
            account = self._accounts[scope.name] = _Account()
        account.requests = _refilled(account.requests, scope.limits.requests_per_minute, now_s)
        account.tokens = _refilled(account.tokens, scope.limits.tokens_per_minute, now_s)
        return account


def refusal(
    scope: Scope, resource: Resource, amount: float, limit: int, wait_s: float, readings: Sequence[Reading]
) -> RateLimited:
    """Return the answer of a request for which a bucket has not enough."""
    headers = rate_headers(tuple(readings))
    if amount > limit:
        rule = f"this request counts as {amount:.0f} {resource}, and {limit} a minute are allowed: it can never fit"
        return RateLimited(f"{scope}: {rule}", code=resource, retry_after_s=None, headers=headers)
    rule = f"the limit of {limit} {resource} a minute is reached; try again in {wait_s:.3f} s"
    return RateLimited(f"{scope}: {rule}", code=resource, retry_after_s=wait_s, headers=headers)


def too_many_at_a_time(scope: Scope, readings: Sequence[Reading]) -> RateLimited:
    """Return the answer of a request beside which too many of its key's own are running."""
    return RateLimited(
        f"{scope}: the limit of {scope.limits.max_concurrent} requests at a time is reached",
        code=Resource.REQUESTS,
        retry_after_s=_CONCURRENT_RETRY_S,
        headers=rate_headers(tuple(readings)),
    )


def reading(resource: Resource, bucket: Bucket) -> Reading:
    """Return the state of a bucket for the headers."""
    return Reading(resource, bucket.per_minute, max(0, math.floor(bucket.level)), bucket.reset_s)


def _charges(account: _Account, num_tokens: int) -> tuple[tuple[Resource, Bucket | None, int], ...]:
    return (Resource.REQUESTS, account.requests, 1), (Resource.TOKENS, account.tokens, num_tokens)


def _readings(accounts: Sequence[_Account]) -> tuple[Reading, ...]:
    return tuple(
        reading(resource, bucket)
        for account in accounts
        for resource, bucket, _ in _charges(account, 0)
        if bucket is not None
    )


def _refilled(bucket: Bucket | None, per_minute: int, now_s: float) -> Bucket | None:
    if not per_minute:
        return None
    if bucket is None:
        return Bucket.full(per_minute, now_s)
    bucket.refill(per_minute, now_s)
    return bucket
