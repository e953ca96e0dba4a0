"""Rates and concurrency in one Redis, for many replicas: each decision is one atomic script, by Redis's own clock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from frontend.gateway.bucket import Bucket
from frontend.gateway.outage import Outage
from frontend.gateway.rates import reading, refusal, too_many_at_a_time
from frontend.gateway.redis_scripts import SETTLE, TAKE
from frontend.gateway.types import Ask, Reading, Resource

_TIMEOUT_S = 1.0  # a request is not held up longer by a Redis that does not answer
_LEASE_S = 60  # a replica that is killed gives its requests' places back after so long
_RENEW_S = 15.0
_MAX_CONNECTIONS = 8  # a burst shares them: a script takes microseconds


class RedisRates:
    """Rates that replicas share; see Rates.

    Args:
        url: redis://, rediss:// or unix://, with the credentials.
        outage: what to do while it does not answer.
    """

    def __init__(self, url: str, outage: Outage) -> None:
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url,
            max_connections=_MAX_CONNECTIONS,
            timeout=_TIMEOUT_S,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
        self._client = redis.asyncio.Redis.from_pool(pool)
        self._take = self._client.register_script(TAKE)
        self._settle = self._client.register_script(SETTLE)
        self._outage = outage
        self._held: dict[str, Ask] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None

    async def take(self, lease_id: str, ask: Ask) -> tuple[Reading, ...]:
        """Charge a request with its estimate; see Rates."""
        if self._outage.is_pause:
            self._outage.pass_or_refuse()
            return ()
        self._renewing = self._renewing or asyncio.create_task(self._renew())
        self._held[lease_id] = ask
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                args: list[str | int] = [lease_id, ask.num_tokens, _LEASE_S, *_limits(ask)]
                answer = await self._take(keys=_keys(ask), args=args)
        except (RedisError, OSError, TimeoutError) as exc:
            self._failed(lease_id, ask, exc)
            return ()
        except asyncio.CancelledError:
            self.undo(lease_id, ask)  # it may have been taken
            raise
        self._outage.worked()
        return self._outcome(lease_id, ask, answer)

    def settle(self, lease_id: str, ask: Ask, num_tokens: int) -> None:
        """End a request; see Rates."""
        self._end(lease_id, ask, num_requests=0, num_tokens=ask.num_tokens - num_tokens)

    def undo(self, lease_id: str, ask: Ask) -> None:
        """End a request that was never served; see Rates."""
        self._end(lease_id, ask, num_requests=1, num_tokens=ask.num_tokens)

    async def close(self) -> None:
        """Wait for what is being settled, and disconnect."""
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        await asyncio.gather(*self._tasks)
        await self._client.aclose()

    def _outcome(self, lease_id: str, ask: Ask, answer: Sequence[bytes]) -> tuple[Reading, ...]:
        """Return the readings that a script's answer says, or raise its refusal."""
        refused, kind, *levels = (float(value) for value in answer)
        readings: list[Reading] = []
        for index, scope in enumerate(ask.scopes):
            limits = scope.limits
            rates = (Resource.REQUESTS, limits.requests_per_minute), (Resource.TOKENS, limits.tokens_per_minute)
            for offset, (resource, limit) in enumerate(rates):
                if limit:
                    readings.append(reading(resource, Bucket(limit, levels[2 * index + offset], 0.0)))
        if not refused:
            return tuple(readings)
        del self._held[lease_id]
        scope = ask.scopes[int(refused) - 1]
        if kind == 3:
            raise too_many_at_a_time(scope, readings)
        is_tokens = kind == 2
        limit = scope.limits.tokens_per_minute if is_tokens else scope.limits.requests_per_minute
        amount = ask.num_tokens if is_tokens else 1
        bucket = Bucket(limit, levels[2 * (int(refused) - 1) + is_tokens], 0.0)
        resource = Resource.TOKENS if is_tokens else Resource.REQUESTS
        raise refusal(scope, resource, amount, limit, bucket.wait_s(amount), readings)

    def _failed(self, lease_id: str, ask: Ask, cause: Exception) -> None:
        """Go on uncounted, or refuse."""
        self._outage.failed(cause)
        # The script may have run although its answer was not seen; the place would expire, the charge would refill.
        self._held.pop(lease_id, None)
        self._outage.pass_or_refuse()

    def _end(self, lease_id: str, ask: Ask, *, num_requests: int, num_tokens: int) -> None:
        if self._held.pop(lease_id, None) is None:
            return  # it went on uncounted
        args: list[str | int] = [lease_id, num_requests, num_tokens, *_limits(ask)]
        self._keep(asyncio.create_task(self._run(self._settle(keys=_keys(ask), args=args))))

    async def _run(self, call: Awaitable[Any]) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await call
        except (RedisError, OSError, TimeoutError) as exc:
            self._outage.failed(exc)

    async def _renew(self) -> None:
        """Keep the places of requests that run for longer than a lease."""
        while True:
            await asyncio.sleep(_RENEW_S)
            if self._held and not self._outage.is_pause:
                await self._run(self._renew_all())

    async def _renew_all(self) -> None:
        seconds, microseconds = await self._client.time()
        expires_s = seconds + microseconds / 1e6 + _LEASE_S
        async with self._client.pipeline(transaction=False) as pipe:
            for lease_id, ask in self._held.items():
                for key in _keys(ask)[1::2]:
                    pipe.zadd(key, {lease_id: expires_s}, xx=True)
                    pipe.expire(key, 2 * _LEASE_S)
            await pipe.execute()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _keys(ask: Ask) -> list[str]:
    """Return the keys of the scopes, two for each. In braces: in a cluster, one key's scopes lie on one node."""
    return [f"conch:{{{scope.key}}}:{scope.model}:{kind}" for scope in ask.scopes for kind in ("levels", "leases")]


def _limits(ask: Ask) -> list[int]:
    return [
        limit
        for scope in ask.scopes
        for limit in (scope.limits.requests_per_minute, scope.limits.tokens_per_minute, scope.limits.max_concurrent)
    ]
