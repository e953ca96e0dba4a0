"""Counts in one Redis, shared by replicas: each decision is one atomic script on the clock of Redis."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AskError, ClusterDownError, NoPermissionError, RedisError, TryAgainError

from frontend.gateway.counters import MAX_USED_S, Amounts, ChargeResult, Counter
from frontend.gateway.outage import OnFailure, Outage
from frontend.gateway.types import MINUTE_S
from frontend.settings import SettingsError

logger = logging.getLogger(__name__)

_TIMEOUT_S = 1.0
_LEASE_S = 60  # concurrency of a killed replica is free after this time
_RENEW_S = 15.0
_KEPT_S = int(MAX_USED_S) + 1
_MAX_CONNECTIONS = 8
# Answers by which Redis refuses the keys of a call, and may serve others: each error with a word of its text. MOVED is
# an AskError. All other errors are an outage: no connection, a replica, a full memory, a wrong password.
_ABOUT_KEYS = {NoPermissionError: " key", AskError: "", TryAgainError: "", ClusterDownError: " slot "}
# asyncio and uvloop raise the last two on a connection that was reset.
_FAILURES = (RedisError, RuntimeError, AttributeError)

# `MemoryCounters` in Lua; a test compares their results. Concurrency is a set with an item for each completion of a
# lease, sorted by the time of expiry.
# KEYS: one for each counter. ARGV: lease; its seconds (0: settle); number of rates; use and capacity of each counter.
# Answer: index of the first counter without room (0: all were charged), the keys that had no counter, then the use of
# each counter.
CHARGE = f"""
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local lease, lease_s, num_rates = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local used, refused, replaced = {{}}, 0, {{}}
local function bounded(seconds) return math.min({MAX_USED_S}, math.max(0, seconds)) end

-- A value that is no counter must not stop its key for ever.
local function replace(key)
  redis.call('DEL', key)
  replaced[#replaced + 1] = key
end

local function call(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  if type(answer) ~= 'table' or not answer.err then return answer end
  if string.find(answer.err, 'WRONGTYPE', 1, true) then replace(key) end
  return redis.call(command, key, ...)
end

-- Seconds until the whole limit is available. More than a minute is a debt, or the clock went back since the value was
-- written, as the time to live shows: then the use is that of the last write.
local function seconds(key)
  local value = call('GET', key)
  if not value then return 0 end
  local full_at = tonumber(value)
  if full_at and full_at - now <= {MINUTE_S} then return bounded(full_at - now) end
  local left = redis.call('PTTL', key) / 1000
  if full_at and left > 0 then return bounded(full_at - now - math.max(0, left - {_KEPT_S})) end
  replace(key)
  return 0
end

for i, key in ipairs(KEYS) do
  if i <= num_rates then
    used[i] = seconds(key)
  else
    call('ZREMRANGEBYSCORE', key, '-inf', now)
    redis.call('ZREMRANGEBYSCORE', key, now + {2 * _LEASE_S}, '+inf')  -- the clock went back
    used[i] = redis.call('ZCARD', key)
  end
  if refused == 0 and lease_s > 0 and used[i] + ARGV[2 * i + 2] > tonumber(ARGV[2 * i + 3]) then refused = i end
end

for i, key in ipairs(refused == 0 and KEYS or {{}}) do
  used[i] = used[i] + ARGV[2 * i + 2]
  if i <= num_rates then
    used[i] = bounded(used[i])
    redis.call('SET', key, string.format('%.17g', now + used[i]), 'EX', {_KEPT_S})
  elseif lease_s > 0 then
    for j = 1, tonumber(ARGV[2 * i + 2]) do redis.call('ZADD', key, now + lease_s, lease .. ':' .. j) end
    redis.call('EXPIRE', key, 2 * lease_s)
  else
    for j = 1, -tonumber(ARGV[2 * i + 2]) do redis.call('ZREM', key, lease .. ':' .. j) end
  end
end
for i, value in ipairs(used) do used[i] = string.format('%.17g', value) end
return {{refused, replaced, unpack(used)}}
"""

# KEYS: one of concurrency. ARGV: the items of its leases.
RENEW = f"""
local time = redis.call('TIME')
local expires = time[1] + time[2] / 1000000 + {_LEASE_S}
for _, item in ipairs(ARGV) do redis.call('ZADD', KEYS[1], 'XX', expires, item) end
redis.call('EXPIRE', KEYS[1], {2 * _LEASE_S})
"""


class RedisCounters:
    """Counts in Redis, with the interface of `MemoryCounters`.

    Args:
        url: redis://, rediss:// or unix://, with the credentials.
        service: the name of Redis in the log, without credentials.

    Raises:
        SettingsError: the URL breaks a rule.
    """

    def __init__(
        self, url: str, service: str, on_failure: OnFailure, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # Version 2 of the protocol needs no HELLO, which proxies of Redis do not know.
        options: dict[str, Any] = {"protocol": 2, "driver_info": None, "retry": Retry(NoBackoff(), 0)}
        try:
            options |= parse_url(url)
            connection_class: type[AbstractConnection] = options.pop("connection_class", Connection)
            self._idle = [connection_class(**options)]
            if isinstance(self._idle[0], SSLConnection):
                self._idle[0].ssl_context.get()  # reads the files that the URL names
        except (ValueError, TypeError, OSError, RedisError) as exc:
            raise SettingsError(f"--redis-url: {exc}") from exc
        self._new_connection = functools.partial(connection_class, **options)
        self._service = service
        self._outage = Outage(service, on_failure, clock, RedisError)
        self._places = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._refused: set[str] = set()  # Redis keys
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
        answer = None if self._outage.is_pause else await self._charge(lease_id, _LEASE_S, counters, amounts)
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
            task = asyncio.create_task(self._charge(lease_id, 0, counters, amounts))
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
        await self._disconnect_idle()

    async def renew(self) -> None:
        """Extend the leases of all running requests."""
        items: dict[str, list[str]] = defaultdict(list)
        for keys, own_items in self._leases.values():
            for key in keys:
                items[key] += own_items
        for key in items:
            if not self._outage.is_pause:
                await self._call(RENEW, [key], items[key])

    async def _renew_until_cancelled(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_S)
            await self.renew()

    async def _charge(
        self, lease_id: str, lease_s: int, counters: Sequence[Counter], amounts: Amounts
    ) -> list[Any] | None:
        arguments: list[Any] = [lease_id, lease_s, sum(counter.is_rate for counter in counters)]
        for counter in counters:
            arguments += [counter.use(amounts), counter.capacity]
        answer = await self._call(CHARGE, [_key(counter) for counter in counters], arguments)
        if answer is None:
            return None
        refused, replaced, *used = answer
        for key in replaced:
            logger.warning("%s had a value that is no counter in the key %s: the key counts from 0", self._service, key)
        return [refused, *used]

    async def _call(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Return the answer of a script, or None: Redis does not count these keys now."""
        answer = await self._outage.call(self._answer(script, keys, arguments), _TIMEOUT_S)
        if self._outage.is_pause:
            await self._disconnect_idle()  # otherwise each of them could be an outage of its own
        return answer

    async def _answer(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Return the answer of a script, or None: Redis refuses these keys. It may serve others."""
        names = ", ".join(keys)
        try:
            answer = await self._run(script, keys, arguments)
        except RedisError as exc:
            if not _is_about_keys(exc):
                raise
            if names not in self._refused:
                self._refused.add(names)
                logger.warning("%s does not count %s: %s: %s", self._service, names, type(exc).__name__, exc)
            return None
        if names in self._refused:
            self._refused.remove(names)
            logger.warning("%s counts %s again", self._service, names)
        return answer

    async def _run(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script, and once more on a new connection: the old one may be closed, or that of an old primary."""
        async with self._places:
            connection = self._idle.pop() if self._idle else self._new_connection()
            try:
                for is_last in (False, True):
                    try:
                        # The text, since proxies have no SCRIPT LOAD; Redis keeps the compiled script anyway.
                        await connection.send_command("EVAL", script, len(keys), *keys, *arguments)
                        return await connection.read_response()
                    except _FAILURES as exc:
                        if is_last or _is_about_keys(exc):
                            raise
                        await connection.disconnect(nowait=True)
            finally:
                self._idle.append(connection)

    async def _disconnect_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.disconnect(nowait=True)


def _key(counter: Counter) -> str:
    return f"conch:{counter.name}"


def _is_about_keys(exc: Exception) -> bool:
    return any(isinstance(exc, error) and word in str(exc) for error, word in _ABOUT_KEYS.items())
