"""Counts in one Redis, shared by replicas: each decision is one atomic script on the clock of Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from frontend.gateway.counters import MAX_USED_S, Amounts, ChargeResult, Counter
from frontend.gateway.outage import OnFailure, Outage

# `MemoryCounters` in Lua; a test compares their results. Concurrency is a set with an item for each completion of a
# lease, sorted by the time of expiry.
# KEYS: one for each counter. ARGV: lease; its seconds (0: settle); number of rates; use and capacity of each counter.
# Answer: index of the first counter without room (0: all were charged), then the use of each counter.
SCRIPT = f"""
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local lease, lease_s, num_rates = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local used, refused = {{}}, 0
local function bounded(seconds) return math.min({MAX_USED_S}, math.max(0, seconds)) end

for i, key in ipairs(KEYS) do
  if i <= num_rates then
    used[i] = bounded((redis.call('GET', key) or now) - now)
  else
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    used[i] = redis.call('ZCARD', key)
  end
  if refused == 0 and lease_s > 0 and used[i] + ARGV[2 * i + 2] > tonumber(ARGV[2 * i + 3]) then refused = i end
end

for i, key in ipairs(refused == 0 and KEYS or {{}}) do
  used[i] = used[i] + ARGV[2 * i + 2]
  if i <= num_rates then
    used[i] = bounded(used[i])
    redis.call('SET', key, string.format('%.17g', now + used[i]), 'EX', {MAX_USED_S + 1:.0f})
  elseif lease_s > 0 then
    for j = 1, tonumber(ARGV[2 * i + 2]) do redis.call('ZADD', key, now + lease_s, lease .. ':' .. j) end
    redis.call('EXPIRE', key, 2 * lease_s)
  else
    for j = 1, -tonumber(ARGV[2 * i + 2]) do redis.call('ZREM', key, lease .. ':' .. j) end
  end
end
for i, value in ipairs(used) do used[i] = string.format('%.17g', value) end
return {{refused, unpack(used)}}
"""

_TIMEOUT_S = 1.0
_LEASE_S = 60  # concurrency of a killed replica is free after this time
_RENEW_S = 15.0
_MAX_CONNECTIONS = 8


class RedisCounters:
    """Counts in Redis, with the interface of `MemoryCounters`.

    Args:
        url: redis://, rediss:// or unix://, with the credentials.
        service: the name of Redis in the log, without credentials.
    """

    def __init__(
        self, url: str, service: str, on_failure: OnFailure, clock: Callable[[], float] = time.monotonic
    ) -> None:
        pool = redis.asyncio.BlockingConnectionPool.from_url(
            url, max_connections=_MAX_CONNECTIONS, retry=Retry(NoBackoff(), 0)
        )
        self._client = redis.asyncio.Redis.from_pool(pool)
        self._script = self._client.register_script(SCRIPT)
        self._outage = Outage(service, on_failure, clock, RedisError)
        self._leases: dict[str, tuple[list[str], list[str]]] = {}  # the keys that have a lease, and its items
        self._settlements: set[asyncio.Task[Any]] = set()
        self._renewal: asyncio.Task[None] | None = None

    async def charge(self, lease_id: str, counters: Sequence[Counter], amounts: Amounts) -> ChargeResult:
        """Charge all counters, or no counter if one has no room.

        Raises:
            LimitsUnavailable: Redis does not answer, and requests must not run uncounted.
        """
        self._renewal = self._renewal or asyncio.create_task(self._renew_until_cancelled())
        items = [f"{lease_id}:{number}" for number in range(1, amounts.concurrency + 1)]
        self._leases[lease_id] = [_key(counter) for counter in counters if not counter.is_rate], items
        answer = None if self._outage.is_pause else await self._call(lease_id, _LEASE_S, counters, amounts)
        if answer is None:
            # The script may have run without an answer. Then the lease expires, and time refills the rates.
            del self._leases[lease_id]
            self._outage.pass_or_refuse()
            return ChargeResult(None, ())
        refused, *used = answer
        if refused:
            del self._leases[lease_id]
        return ChargeResult(refused - 1 if refused else None, [float(value) for value in used])

    def settle(self, lease_id: str, counters: Sequence[Counter], amounts: Amounts) -> None:
        """Charge all counters, with or without room, and end the lease. Ignore a lease that was not charged."""
        if self._leases.pop(lease_id, None) is not None:
            task = asyncio.create_task(self._call(lease_id, 0, counters, amounts))
            self._settlements.add(task)
            task.add_done_callback(self._settlements.discard)

    async def settled(self) -> None:
        """Wait until Redis has all settlements."""
        await asyncio.gather(*self._settlements)

    async def close(self) -> None:
        """Wait for the settlements and disconnect."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])
        await self.settled()
        await self._client.aclose()

    async def renew(self) -> None:
        """Extend the leases of all running requests."""
        seconds, microseconds = await self._client.time()
        expires_s = seconds + microseconds / 1e6 + _LEASE_S
        async with self._client.pipeline(transaction=False) as pipeline:
            for keys, items in self._leases.values():
                for key in keys:
                    pipeline.zadd(key, dict.fromkeys(items, expires_s), xx=True)
                    pipeline.expire(key, 2 * _LEASE_S)
            await pipeline.execute()

    async def _renew_until_cancelled(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_S)
            if self._leases:
                await self._outage.call(self.renew(), _TIMEOUT_S)

    async def _call(
        self, lease_id: str, lease_s: int, counters: Sequence[Counter], amounts: Amounts
    ) -> list[Any] | None:
        arguments: list[Any] = [lease_id, lease_s, sum(counter.is_rate for counter in counters)]
        for counter in counters:
            arguments += [counter.use(amounts), counter.capacity]
        call: Awaitable[list[Any]] = self._script(keys=[_key(counter) for counter in counters], args=arguments)
        return await self._outage.call(call, _TIMEOUT_S)


def _key(counter: Counter) -> str:
    return f"conch:{counter.name}"
