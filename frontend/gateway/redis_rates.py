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

from frontend.gateway.outage import Outage
from frontend.gateway.rates import Bucket, reading, refusal, too_many_at_a_time
from frontend.gateway.types import AdmissionRequest, Reading, Resource

# The arithmetic of `Bucket` in Lua, which Redis computes itself. A test holds both to the same results.
_LEVELS = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000

-- What is left of both rates, as of now.
local function levels(key, requests_limit, tokens_limit)
  local kept = redis.call('HMGET', key, 'requests', 'tokens', 'at')
  local elapsed = math.max(0, now - (tonumber(kept[3]) or now))
  local function refilled(level, limit)
    return math.min(limit, (tonumber(level) or limit) + elapsed * limit / 60)
  end
  return refilled(kept[1], requests_limit), refilled(kept[2], tokens_limit)
end

local function keep(key, requests, tokens)
  local format = '%.17g'
  redis.call('HSET', key, 'requests', format:format(requests), 'tokens', format:format(tokens),
    'at', format:format(now))
  redis.call('EXPIRE', key, 180)  -- by then both are full
end
"""

# KEYS: levels and leases of each scope. ARGV: lease, tokens, seconds of a lease; limits of each scope.
# Answer: 0 or the scope that refuses; why: 1 requests, 2 tokens, 3 concurrency; then the levels of each scope.
TAKE = (
    _LEVELS
    + """
local lease, num_tokens, lease_s = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local refused, why = 0, 0
local left = {}
for scope = 1, #KEYS / 2 do
  local first = 3 * scope
  local requests_limit = tonumber(ARGV[first + 1])
  local tokens_limit = tonumber(ARGV[first + 2])
  local max_concurrent = tonumber(ARGV[first + 3])
  local requests, tokens = levels(KEYS[2 * scope - 1], requests_limit, tokens_limit)
  left[2 * scope - 1], left[2 * scope] = requests, tokens
  if refused == 0 then
    local leases = KEYS[2 * scope]
    redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
    if requests_limit > 0 and requests < 1 then
      refused, why = scope, 1
    elseif tokens_limit > 0 and tokens < num_tokens then
      refused, why = scope, 2
    elseif max_concurrent > 0 and redis.call('ZCARD', leases) >= max_concurrent then
      refused, why = scope, 3
    end
  end
end
for scope = 1, #KEYS / 2 do
  if refused == 0 then
    left[2 * scope - 1] = left[2 * scope - 1] - 1
    left[2 * scope] = left[2 * scope] - num_tokens
    keep(KEYS[2 * scope - 1], left[2 * scope - 1], left[2 * scope])
    redis.call('ZADD', KEYS[2 * scope], now + lease_s, lease)
    redis.call('EXPIRE', KEYS[2 * scope], 2 * lease_s)
  end
end
local answer = {tostring(refused), tostring(why)}
for index, level in ipairs(left) do
  answer[index + 2] = string.format('%.17g', level)
end
return answer
"""
)

# KEYS: as above. ARGV: lease; requests and tokens to put back, negative to take; limits of each scope.
SETTLE = (
    _LEVELS
    + """
local lease, num_requests, num_tokens = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
for scope = 1, #KEYS / 2 do
  local first = 3 * scope
  local requests_limit, tokens_limit = tonumber(ARGV[first + 1]), tonumber(ARGV[first + 2])
  local requests, tokens = levels(KEYS[2 * scope - 1], requests_limit, tokens_limit)
  local function added(level, amount, limit)
    return math.min(limit, math.max(-limit, level + amount))
  end
  keep(KEYS[2 * scope - 1], added(requests, num_requests, requests_limit), added(tokens, num_tokens, tokens_limit))
  redis.call('ZREM', KEYS[2 * scope], lease)
end
"""
)

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
        self._held: dict[str, AdmissionRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None

    async def take(self, lease_id: str, request: AdmissionRequest) -> tuple[Reading, ...]:
        """Charge a request with its estimate; see Rates."""
        if self._outage.is_pause:
            self._outage.pass_or_refuse()
            return ()
        self._renewing = self._renewing or asyncio.create_task(self._renew())
        self._held[lease_id] = request
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                args: list[str | int] = [lease_id, request.num_tokens, _LEASE_S, *_limits(request)]
                answer = await self._take(keys=_keys(request), args=args)
        except (RedisError, OSError, TimeoutError) as exc:
            self._failed(lease_id, request, exc)
            return ()
        except asyncio.CancelledError:
            self.undo(lease_id, request)  # it may have been taken
            raise
        self._outage.worked()
        return self._outcome(lease_id, request, answer)

    def settle(self, lease_id: str, request: AdmissionRequest, num_tokens: int) -> None:
        """End a request; see Rates."""
        self._end(lease_id, request, num_requests=0, num_tokens=request.num_tokens - num_tokens)

    def undo(self, lease_id: str, request: AdmissionRequest) -> None:
        """End a request that was never served; see Rates."""
        self._end(lease_id, request, num_requests=1, num_tokens=request.num_tokens)

    async def close(self) -> None:
        """Wait for what is being settled, and disconnect."""
        if self._renewing is not None:
            self._renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._renewing
        await asyncio.gather(*self._tasks)
        await self._client.aclose()

    def _outcome(self, lease_id: str, request: AdmissionRequest, answer: Sequence[bytes]) -> tuple[Reading, ...]:
        """Return the readings that a script's answer says, or raise its refusal."""
        refused, kind, *levels = (float(value) for value in answer)
        readings: list[Reading] = []
        for index, scope in enumerate(request.scopes):
            limits = scope.limits
            rates = (Resource.REQUESTS, limits.requests_per_minute), (Resource.TOKENS, limits.tokens_per_minute)
            for offset, (resource, limit) in enumerate(rates):
                if limit:
                    readings.append(reading(resource, Bucket(limit, levels[2 * index + offset], 0.0)))
        if not refused:
            return tuple(readings)
        del self._held[lease_id]
        scope = request.scopes[int(refused) - 1]
        if kind == 3:
            raise too_many_at_a_time(scope, readings)
        is_tokens = kind == 2
        limit = scope.limits.tokens_per_minute if is_tokens else scope.limits.requests_per_minute
        amount = request.num_tokens if is_tokens else 1
        bucket = Bucket(limit, levels[2 * (int(refused) - 1) + is_tokens], 0.0)
        resource = Resource.TOKENS if is_tokens else Resource.REQUESTS
        raise refusal(scope, resource, amount, limit, bucket.wait_s(amount), readings)

    def _failed(self, lease_id: str, request: AdmissionRequest, cause: Exception) -> None:
        """Go on uncounted, or refuse."""
        self._outage.failed(cause)
        # The script may have run although its answer was not seen; the place would expire, the charge would refill.
        self._held.pop(lease_id, None)
        self._outage.pass_or_refuse()

    def _end(self, lease_id: str, request: AdmissionRequest, *, num_requests: int, num_tokens: int) -> None:
        if self._held.pop(lease_id, None) is None:
            return  # it went on uncounted
        args: list[str | int] = [lease_id, num_requests, num_tokens, *_limits(request)]
        self._keep(asyncio.create_task(self._run(self._settle(keys=_keys(request), args=args))))

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
            for lease_id, request in self._held.items():
                for key in _keys(request)[1::2]:
                    pipe.zadd(key, {lease_id: expires_s}, xx=True)
                    pipe.expire(key, 2 * _LEASE_S)
            await pipe.execute()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _keys(request: AdmissionRequest) -> list[str]:
    """Return the keys of the scopes, two for each. In braces: in a cluster, one key's scopes lie on one node."""
    return [f"conch:{{{scope.key}}}:{scope.model}:{kind}" for scope in request.scopes for kind in ("levels", "leases")]


def _limits(request: AdmissionRequest) -> list[int]:
    return [
        limit
        for scope in request.scopes
        for limit in (scope.limits.requests_per_minute, scope.limits.tokens_per_minute, scope.limits.max_concurrent)
    ]
