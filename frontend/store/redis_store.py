"""Objects in Redis: each change is one atomic script on the keys of one owner, which are in one slot of a cluster."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as NoAnswerOfRedis

from frontend.settings import SettingsError
from frontend.store.breaker import Breaker
from frontend.store.types import (
    NO_LIMIT,
    SWEEP_SHARE,
    Append,
    Bounds,
    Change,
    Claimed,
    Create,
    Delete,
    Item,
    ItemPage,
    Kind,
    NoAnswer,
    Replace,
    Store,
    Stored,
    StoreUnavailable,
    Usage,
    unnoted,
    written_bytes,
)

_PREFIX = "conch:store:2:"  # the version of the keys below
_OWNERS = f"{_PREFIX}owners"
_WORKING = f"{_PREFIX}working"  # the owners that have ever had work
_TIMEOUT_S = 2.0
_NUM_DROPPED = 500  # objects that one script drops at most, since Redis does nothing else meanwhile
_NUM_RETRIES, _RETRY_S = 3, 0.5  # another server takes over
_KEPT_S = 60  # longer than all repetitions of a write
_OBJECT_BYTES, _ITEM_BYTES = 1000, 600  # of keys and places in indexes, beside the values
_num_bytes = partial(written_bytes, object_bytes=_OBJECT_BYTES, item_bytes=_ITEM_BYTES)

# The keys of an owner behind its prefix:
# o:ID  a hash: kind, head, body, version, num_items, num_bytes, created_s
# n:ID  the items' names by number: the id, or ' NUMBER:ID' if it is empty or of an item before it
# v:ID  the items' values by name
# i:ID  the objects that have the item with this id
# c:KIND, u  the objects by their creation, and by their last use
# b     the bytes of all objects
# KEYS[1] is the prefix, and ARGV[1] the time.
_PRELUDE = """
local p, now = KEYS[1], ARGV[1]
local function fields_of(id)
  local key = p .. 'o:' .. id
  local fields = redis.call('HMGET', key, 'head', 'version', 'num_items', 'created_s', 'num_bytes')
  fields[#fields + 1] = redis.call('HSTRLEN', key, 'body')
  return fields[1] and {id, unpack(fields)} or nil
end
local function use(id) redis.call('ZADD', p .. 'u', 'XX', now, id) end
local function grow(id, size)
  redis.call('HINCRBY', p .. 'o:' .. id, 'num_bytes', size)
  redis.call('INCRBY', p .. 'b', size)
end
local function drop(id)
  local kind, size = unpack(redis.call('HMGET', p .. 'o:' .. id, 'kind', 'num_bytes'))
  for _, name in ipairs(redis.call('ZRANGE', p .. 'n:' .. id, 0, -1)) do
    redis.call('SREM', p .. 'i:' .. name, id)
  end
  redis.call('DEL', p .. 'o:' .. id, p .. 'n:' .. id, p .. 'v:' .. id)
  redis.call('ZREM', p .. 'u', id)
  for _, each in ipairs({KINDS}) do redis.call('ZREM', p .. 'c:' .. each, id) end
  redis.call('DECRBY', p .. 'b', size or 0)
  return size or 0
end
""".replace("KINDS", ", ".join(f"'{kind}'" for kind in Kind))
# The result of a write is kept under KEYS[2] for some time: the client repeats a write if the answer was lost.
_ONCE = """
local known = redis.call('GET', KEYS[2])
if known then return tonumber(known) end
local function write()
WRITE
end
local result = write()
redis.pcall('SET', KEYS[2], result, 'EX', KEPT_S) -- a full Redis refuses it if nothing was written
return result
""".replace("KEPT_S", str(_KEPT_S))
# Of each change: its name, id, kind or version, head, body, size of the new object or items, number of items, and name
# and value of each item.
_WRITE = """
local place = 2
while place <= #ARGV do
  local change, id, which, head, body, size, num = unpack(ARGV, place, place + 6)
  local key, is_possible = p .. 'o:' .. id, redis.call('EXISTS', p .. 'o:' .. id) == 1
  if change == 'create' then
    is_possible = not is_possible
  elseif change == 'delete' then
    is_possible = redis.call('HGET', key, 'kind') == which
  elseif which ~= '' then
    is_possible = redis.call('HGET', key, 'version') == which
  end
  if not is_possible then
    if place == 2 then return 0 end
  elseif change == 'delete' then
    drop(id)
  else
    if change == 'create' then
      redis.call('HSET', key, 'kind', which, 'head', head, 'body', body, 'version', 0, 'created_s', now)
      redis.call('ZADD', p .. 'c:' .. which, now, id)
      redis.call('ZADD', p .. 'u', now, id)
    elseif change ~= 'append' then
      for name, value in pairs({head = head, body = change == 'replace all' and body or nil}) do
        grow(id, #value - redis.call('HSTRLEN', key, name))
        redis.call('HSET', key, name, value)
      end
      redis.call('HINCRBY', key, 'version', 1)
    end
    local at = redis.call('HINCRBY', key, 'num_items', num) - num
    for item = place + 7, place + 5 + 2 * num, 2 do
      local name = ARGV[item]
      if name == '' or redis.call('HEXISTS', p .. 'v:' .. id, name) == 1 then
        name = ' ' .. at .. ':' .. name
      else
        redis.call('SADD', p .. 'i:' .. name, id)
      end
      redis.call('ZADD', p .. 'n:' .. id, at, name)
      redis.call('HSET', p .. 'v:' .. id, name, ARGV[item + 1])
      at = at + 1
    end
    grow(id, size)
    use(id)
  end
  place = place + 7 + 2 * num
end
return 1
"""
_READ = """
local kind, found = ARGV[2], {}
for place = 3, #ARGV do
  local key = p .. 'o:' .. ARGV[place]
  if redis.call('HGET', key, 'kind') == kind then
    pcall(use, ARGV[place]) -- a full Redis refuses it
    found[#found + 1] = fields_of(ARGV[place])
  end
end
return found
"""
_BODIES = """
local found = {}
for place = 2, #ARGV do found[#found + 1] = redis.call('HGET', p .. 'o:' .. ARGV[place], 'body') end
return found
"""
# id, numbers of the first item and of that behind the last one, name of the item behind which the page begins or an
# empty one, limits of the number and of bytes; 1: newest first. A value that does not fit is false.
_ITEMS = """
local id, low, high, after, is_newest_first = ARGV[2], ARGV[3], '(' .. ARGV[4], ARGV[5], ARGV[8] == '1'
if after ~= '' then
  local number = tonumber(redis.call('ZSCORE', p .. 'n:' .. id, after))
  if not number or number < tonumber(ARGV[3]) or number >= tonumber(ARGV[4]) then return false end
  if is_newest_first then high = '(' .. number else low = '(' .. number end
end
local range, first, last = 'ZRANGEBYSCORE', low, high
if is_newest_first then range, first, last = 'ZREVRANGEBYSCORE', high, low end
local found, total = {}, 0
for place, name in ipairs(redis.call(range, p .. 'n:' .. id, first, last, 'LIMIT', 0, ARGV[6])) do
  total = total + redis.call('HSTRLEN', p .. 'v:' .. id, name)
  local fits = place == 1 or total <= tonumber(ARGV[7])
  found[place] = {name, fits and redis.call('HGET', p .. 'v:' .. id, name)}
end
return found
"""
_FIND = """
local found = {}
for place = 3, #ARGV do
  local id = ARGV[2] ~= '' and ARGV[2] or redis.call('SRANDMEMBER', p .. 'i:' .. ARGV[place])
  local is_there = id and redis.call('HEXISTS', p .. 'v:' .. id, ARGV[place]) == 1
  found[#found + 1] = is_there and redis.call('COMMAND', p .. 'v:' .. id, ARGV[place])
end
return found
"""
_SIZES = _FIND.replace("COMMAND", "HSTRLEN")
_FIND = _FIND.replace("COMMAND", "HGET")
_REMOVE_ITEM = """
local id, name = ARGV[2], ARGV[3]
local value = redis.call('HGET', p .. 'v:' .. id, name)
if not value then return 0 end
redis.call('HDEL', p .. 'v:' .. id, name)
redis.call('ZREM', p .. 'n:' .. id, name)
redis.call('SREM', p .. 'i:' .. name, id)
grow(id, -#value - ARGV[4])
return 1
"""
# kind, id behind which the page begins, limit; 1: newest first
_PAGE = """
local key, range, first = p .. 'c:' .. ARGV[2], ARGV[5] == '1' and 'ZREVRANGE' or 'ZRANGE', 0
if ARGV[3] ~= '' then
  first = redis.call(ARGV[5] == '1' and 'ZREVRANK' or 'ZRANK', key, ARGV[3])
  if not first then return false end
  first = first + 1
end
local found = {}
for _, id in ipairs(redis.call(range, key, first, first + ARGV[4] - 1)) do
  found[#found + 1] = fields_of(id)
end
return found
"""
_CLAIM = """
local found = {}
for _, id in ipairs(redis.call('ZRANGE', p .. 'c:' .. ARGV[2], 0, -1)) do
  if tonumber(redis.call('ZSCORE', p .. 'u', id) or now) <= tonumber(ARGV[3]) then
    use(id)
    found[#found + 1] = {id, redis.call('HGET', p .. 'o:' .. id, 'head')}
  end
end
return found
"""
# time before which objects are too old, largest number of bytes, and of objects
_SWEEP = f"""
local num, size = 0, 0
while num < {_NUM_DROPPED} do
  local oldest, used = unpack(redis.call('ZRANGE', p .. 'u', 0, 0, 'WITHSCORES'))
  if not oldest or (tonumber(used) > tonumber(ARGV[2])
      and tonumber(redis.call('GET', p .. 'b') or 0) <= tonumber(ARGV[3])
      and redis.call('ZCARD', p .. 'u') <= tonumber(ARGV[4])) then break end
  num, size = num + 1, size + drop(oldest)
end
return {{num, size}}
"""
_USAGE = "return {redis.call('ZCARD', p .. 'u'), redis.call('GET', p .. 'b') or 0}"


class RedisStore(Store):
    """See Store.

    Args:
        url: redis://, rediss:// or unix://, with the credentials.
        clock: unix seconds.
        note: called after each call of Redis with whether it answered.

    Raises:
        SettingsError: the URL breaks a rule.
    """

    def __init__(
        self,
        url: str,
        bounds: Bounds,
        clock: Callable[[], float] = time.time,
        note: Callable[[bool], None] = unnoted,
    ) -> None:
        retry = Retry(ConstantBackoff(_RETRY_S), _NUM_RETRIES)
        try:
            self._redis = Redis.from_url(
                url,
                protocol=2,  # it needs no HELLO, which proxies of Redis do not know
                driver_info=None,
                socket_timeout=_TIMEOUT_S,
                socket_connect_timeout=_TIMEOUT_S,
                retry=retry,
            )
        except (ValueError, TypeError) as exc:
            raise SettingsError(f"--store: {exc}") from exc
        self._bounds = bounds
        self._clock, self._breaker = clock, Breaker(note)
        self._num_written_bytes = 0  # since the last sweep

    async def write(self, owner: str, *changes: Change) -> bool:
        """See Store."""
        kinds = [change.kind for change in changes if isinstance(change, Create)]
        if kinds:
            await self._answer(self._redis.zadd, _OWNERS, {owner: self._clock()})
        if Kind.WORK in kinds:
            await self._answer(self._redis.zadd, _WORKING, {owner: self._clock()})
        is_possible = await self._run_once(_WRITE, owner, *itertools.chain(*map(_arguments, changes)))
        with contextlib.suppress(StoreUnavailable):  # the write itself has succeeded
            await self._bound(owner, sum(map(_num_bytes, changes)))
        return is_possible

    async def read(self, owner: str, kind: Kind, ids: Sequence[str]) -> dict[str, Stored]:
        """See Store."""
        found = await self._run(_READ, owner, kind, *ids) if ids else ()
        return {each.id: each for each in map(_stored, found)}

    async def bodies(self, owner: str, ids: Sequence[str]) -> dict[str, bytes]:
        """See Store."""
        found = await self._run(_BODIES, owner, *ids) if ids else ()
        return {identity: body for identity, body in zip(ids, found, strict=True) if body is not None}

    async def items(
        self,
        owner: str,
        identity: str,
        *,
        start: int = 0,
        stop: int = NO_LIMIT,
        after: str = "",
        limit: int = NO_LIMIT,
        max_bytes: int = NO_LIMIT,
        is_newest_first: bool,
    ) -> ItemPage | None:
        """See Store."""
        place = start, stop, after, min(limit + 1, 2**31), max_bytes, int(is_newest_first)
        found = await self._run(_ITEMS, owner, identity, *place)
        if found is None:
            return None
        items = [_item(name, value) for name, value in found[:limit] if value is not None]
        return ItemPage(items, len(items) < len(found))

    async def items_of(self, owner: str, ids: Sequence[str]) -> dict[str, list[Item]]:
        """See Store."""
        pages = {each: await self.items(owner, each, is_newest_first=False) for each in ids}
        return {each: list(page.items) if page else [] for each, page in pages.items()}

    async def find_items(self, owner: str, ids: Sequence[str], identity: str = "") -> dict[str, bytes]:
        """See Store."""
        return await self._found(_FIND, owner, ids, identity)

    async def item_sizes(self, owner: str, ids: Sequence[str], identity: str = "") -> dict[str, int]:
        """See Store."""
        return await self._found(_SIZES, owner, ids, identity)

    async def _found(self, script: str, owner: str, ids: Sequence[str], identity: str) -> dict[str, Any]:
        found = await self._run(script, owner, identity, *ids) if ids else ()
        return {identity: value for identity, value in zip(ids, found, strict=True) if value is not None}

    async def remove_item(self, owner: str, identity: str, item: str) -> bool:
        """See Store."""
        return await self._run_once(_REMOVE_ITEM, owner, identity, item, _ITEM_BYTES)

    async def page(
        self, owner: str, kind: Kind, *, after: str = "", limit: int, is_newest_first: bool
    ) -> list[Stored] | None:
        """See Store."""
        found = await self._run(_PAGE, owner, kind, after, limit, int(is_newest_first))
        return None if found is None else list(map(_stored, found))

    async def claim(self, kind: Kind, unused_s: float) -> list[Claimed]:
        """See Store."""
        return [
            Claimed(owner, identity.decode(), head)
            for owner in await self._owners(_WORKING)
            for identity, head in await self._run(_CLAIM, owner, kind, self._clock() - unused_s)
        ]

    async def usage(self) -> dict[str, Usage]:
        """See Store."""
        found = {}
        for owner in await self._owners():
            num_objects, num_bytes = await self._run(_USAGE, owner)
            if num_objects:
                found[owner] = Usage(num_objects, int(num_bytes))
        return found

    async def drop(self, owner: str) -> Usage:
        """See Store."""
        return await self._drop(owner, NO_LIMIT, 0, 0)  # the owner stays known: a new object may be on its way

    async def sweep(self) -> None:
        """See Store."""
        self._num_written_bytes = 0
        bounds, usage = self._bounds, await self.usage()
        share = _share(sorted(each.num_bytes for each in usage.values()), bounds.max_bytes)
        for owner in usage:
            await self._sweep(
                owner, min((each for each in (share, bounds.owner_bytes) if each is not None), default=None)
            )

    async def close(self) -> None:
        """See Store."""
        await self._redis.aclose()

    async def _sweep(self, owner: str, max_bytes: int | None) -> None:
        bounds = self._bounds
        before = 0 if bounds.age_s is None else self._clock() - bounds.age_s
        limits = [NO_LIMIT if limit is None else limit for limit in (max_bytes, bounds.owner_objects)]
        await self._drop(owner, before, *limits)

    async def _drop(self, owner: str, before: float, max_bytes: int, max_objects: int) -> Usage:
        """Drop objects that were not used since a time, and the oldest ones beyond limits; return how much that was."""
        total = Usage(0, 0)
        while (dropped := Usage(*await self._run(_SWEEP, owner, before, max_bytes, max_objects))).num_objects:
            total = Usage(total.num_objects + dropped.num_objects, total.num_bytes + dropped.num_bytes)
        return total

    async def _bound(self, owner: str, num_bytes: int) -> None:
        """Apply the bounds after a write: those of its owner always, that of all owners once much was written."""
        self._num_written_bytes += num_bytes
        bounds = self._bounds
        if bounds.max_bytes is not None and self._num_written_bytes > SWEEP_SHARE * bounds.max_bytes:
            await self.sweep()
        elif bounds.owner_bytes is not None or bounds.owner_objects is not None:
            await self._sweep(owner, bounds.owner_bytes)

    async def _owners(self, key: str = _OWNERS) -> list[str]:
        return [owner.decode() for owner in await self._answer(self._redis.zrange, key, 0, -1)]

    async def _run_once(self, script: str, owner: str, *arguments: Any) -> bool:
        token = f"t:{secrets.token_hex(16)}"
        return bool(await self._run(_ONCE.replace("WRITE", script), owner, *arguments, token=token))

    async def _run(self, script: str, owner: str, *arguments: Any, token: str = "") -> Any:
        prefix, texts = f"{_PREFIX}{{{owner}}}:", (repr(self._clock()), *map(_text, arguments))
        return await self._answer(self._redis.eval, _PRELUDE + script, 2, prefix, prefix + token, *texts)

    async def _answer(self, command: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        return await self._breaker.call(partial(_answer, command, *arguments))


async def _answer(command: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    try:
        return await command(*arguments)
    except (RedisError, OSError) as exc:
        kind = NoAnswer if isinstance(exc, NoAnswerOfRedis) else StoreUnavailable
        raise kind(f"Redis: {exc}") from exc


def _text(value: Any) -> str | bytes:
    return value if isinstance(value, bytes) else str(value)


def _arguments(change: Change) -> Sequence[Any]:
    """Return the arguments of a change for the script."""
    match change:
        case Create():
            new = (change.kind, change.head, change.body, _num_bytes(change), len(change.items))
            return ("create", change.id, *new, *_flat(change.items))
        case Append():
            return ("append", change.id, "", "", "", _num_bytes(change), len(change.items), *_flat(change.items))
        case Replace():
            version = "" if change.version is None else change.version
            name = "replace" if change.body is None else "replace all"
            return (name, change.id, version, change.head, change.body or b"", 0, 0)
        case Delete():
            return ("delete", change.id, change.kind, "", "", 0, 0)


def _flat(items: Sequence[Item]) -> list[str | bytes]:
    return [text for item in items for text in (item.id, item.value)]


def _item(name: bytes, value: bytes) -> Item:
    return Item((name.partition(b":")[2] if name.startswith(b" ") else name).decode(), value)


def _stored(found: Sequence[Any]) -> Stored:
    identity, head, version, num_items, created_s, num_bytes, num_body_bytes = found
    return Stored(
        identity.decode(), head, int(version), int(num_items), float(created_s), int(num_bytes), int(num_body_bytes)
    )


def _share(sizes: Sequence[int], max_bytes: int | None) -> int | None:
    """Return the bytes that each owner may have, if no owner leaves others' shares unused; None: no limit.

    Args:
        sizes: of the owners, the smallest first.
    """
    if max_bytes is None or sum(sizes) <= max_bytes:
        return None
    left = max_bytes
    for place, size in enumerate(sizes):
        share = left // (len(sizes) - place)
        if size > share:
            return share
        left -= size
    return None
