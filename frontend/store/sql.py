"""Objects in tables, by statements that SQLite and PostgreSQL both read."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

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
    Replace,
    Store,
    Stored,
    StoreUnavailable,
    Usage,
    unnoted,
    written_bytes,
)

# The statements that lead from each version of the tables to the next, from none to the present one. `{bytes}` and
# `{float}` stand for a database's types. Version 1, which was in no release, is replaced by an empty version 2.
MIGRATIONS: Sequence[Sequence[str]] = (
    (),
    (
        "DROP TABLE IF EXISTS items",
        "DROP TABLE IF EXISTS objects",
        """
    CREATE TABLE objects (
        owner TEXT NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL, head {bytes} NOT NULL, version BIGINT NOT NULL,
        num_items BIGINT NOT NULL, num_bytes BIGINT NOT NULL, created_s {float} NOT NULL, used_s {float} NOT NULL,
        body {bytes} NOT NULL,
        PRIMARY KEY (owner, id)
    )
    """,
        "CREATE INDEX objects_by_time ON objects (owner, kind, created_s, id)",
        "CREATE INDEX objects_by_use ON objects (used_s)",
        "CREATE INDEX objects_by_kind ON objects (kind, used_s)",
        "CREATE INDEX objects_by_size ON objects (owner, num_bytes)",
        """
    CREATE TABLE items (
        owner TEXT NOT NULL, object TEXT NOT NULL, number BIGINT NOT NULL, id TEXT NOT NULL, value {bytes} NOT NULL,
        PRIMARY KEY (owner, object, number),
        FOREIGN KEY (owner, object) REFERENCES objects (owner, id) ON DELETE CASCADE
    )
    """,
        "CREATE INDEX items_by_id ON items (owner, id)",
    ),
)
_OBJECT_BYTES, _ITEM_BYTES = 500, 400  # of a row and its places in the indexes, beside its values
_num_bytes = partial(written_bytes, object_bytes=_OBJECT_BYTES, item_bytes=_ITEM_BYTES)

_HEAD = "id, head, version, num_items, created_s, num_bytes, LENGTH(body)"
_OF = "owner = :owner AND id = :id"
_ITEM = "(SELECT MIN(number) FROM items WHERE owner = :owner AND object = :id AND id = :item)"
_CREATED = "(SELECT created_s, id FROM objects WHERE owner = :owner AND kind = :kind AND id = :after)"
_USE = f"UPDATE objects SET used_s = :now WHERE {_OF}"
_OWN = """
    SELECT owner, id, num_bytes,
        SUM(num_bytes) OVER (PARTITION BY owner ORDER BY used_s DESC, created_s DESC, id) AS own_bytes,
        ROW_NUMBER() OVER (PARTITION BY owner ORDER BY used_s DESC, created_s DESC, id) AS place
    FROM objects
"""
_BEYOND = "own_bytes > :owner_bytes OR place > :owner_objects"
_SWEEP_OWNER = f"""
    WITH own AS ({_OWN} WHERE owner = :owner)
    DELETE FROM objects WHERE owner = :owner AND id IN (SELECT id FROM own WHERE {_BEYOND})
"""
# Owners are filled in turn: each object counts with all newer ones of its owner, and those that count least stay.
_SWEEP = f"""
    WITH own AS ({_OWN}), filled AS (
        SELECT owner, id, own_bytes, place, SUM(num_bytes) OVER (ORDER BY own_bytes, owner, id) AS all_bytes FROM own
    )
    DELETE FROM objects WHERE (owner, id) IN (
        SELECT owner, id FROM filled WHERE {_BEYOND} OR all_bytes > :max_bytes
    )
"""

type Statement = tuple[str, Sequence[Mapping[str, Any]]]  # with parameters as :name, and their values of each execution
type Rows = list[tuple[Any, ...]]


class Database(Protocol):
    """A database with the tables of `MIGRATIONS`."""

    async def run(self, statements: Sequence[Statement], *, is_conditional: bool = False) -> list[Rows]:
        """Run statements in one transaction; return the rows of each, of all its executions.

        Args:
            is_conditional: the transaction ends at the first statement if that returns no row.

        Raises:
            StoreUnavailable: the database does not answer, or is full. The transaction is made as a whole, or not.
        """

    async def close(self) -> None:
        """Close it."""


class SqlStore(Store):
    """See Store.

    Args:
        clock: unix seconds.
        note: called after each call of the database with whether it answered.
    """

    def __init__(
        self,
        database: Database,
        bounds: Bounds,
        clock: Callable[[], float] = time.time,
        note: Callable[[bool], None] = unnoted,
    ) -> None:
        self._database = database
        self._bounds = bounds
        self._clock, self._breaker = clock, Breaker(note)
        self._num_written_bytes = 0  # since the last sweep
        self._written = dict[str, Usage]()  # by owners with bounds of their own, since the last sweep

    async def write(self, owner: str, *changes: Change) -> bool:
        """See Store."""
        values = {"owner": owner, "now": self._clock()}
        statements = [
            (text, [{**values, **own} for own in each]) for change in changes for text, each in _statements(change)
        ]
        rows = await self._run(statements, is_conditional=True)
        with contextlib.suppress(StoreUnavailable):  # the write itself has succeeded
            num_created = sum(isinstance(change, Create) for change in changes)
            await self._sweep_after(owner, sum(map(_num_bytes, changes)), num_created)
        return bool(rows[0])

    async def read(self, owner: str, kind: Kind, ids: Sequence[str]) -> dict[str, Stored]:
        """See Store."""
        select = f"SELECT {_HEAD}, used_s < :now - 1 FROM objects WHERE {_OF} AND kind = :kind"
        values = {"owner": owner, "kind": kind, "now": self._clock()}
        [rows] = await self._run([(select, [{**values, "id": each} for each in ids])])
        with contextlib.suppress(StoreUnavailable):  # a full disk can be read
            await self._run([(_USE, [{**values, "id": row[0]} for row in rows if row[-1]])])  # not for each read
        return {row[0]: Stored(*row[:-1]) for row in rows}

    async def bodies(self, owner: str, ids: Sequence[str]) -> dict[str, bytes]:
        """See Store."""
        select = f"SELECT id, body FROM objects WHERE {_OF}"
        [rows] = await self._run([(select, [{"owner": owner, "id": each} for each in ids])])
        return {identity: body for identity, body in rows}

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
        order, beyond = ("DESC", "<") if is_newest_first else ("ASC", ">")
        # No value is read to find its size, nor one that does not fit.
        select = f"""
            WITH sized AS (
                SELECT number, LENGTH(value) AS size FROM items
                WHERE owner = :owner AND object = :id AND number >= :start AND number < :stop
                {f"AND number {beyond} {_ITEM}" if after else ""} ORDER BY number {order} LIMIT :limit
            ), summed AS (SELECT number, size, SUM(size) OVER (ORDER BY number {order}) AS total FROM sized)
            SELECT items.id, items.value FROM summed LEFT JOIN items ON items.owner = :owner AND items.object = :id
                AND items.number = summed.number AND (total <= :max_bytes OR total = size)
            ORDER BY summed.number {order}
        """
        values = {"owner": owner, "id": identity, "item": after, "limit": limit + 1}
        values |= {"start": start, "stop": stop, "max_bytes": max_bytes}
        [[number]], rows = await self._run([(f"SELECT {_ITEM}", [values]), (select, [values])])
        if after and (number is None or not start <= number < stop):
            return None
        items = [Item(*row) for row in rows[:limit] if row[1] is not None]
        return ItemPage(items, len(items) < len(rows))

    async def items_of(self, owner: str, ids: Sequence[str]) -> dict[str, list[Item]]:
        """See Store."""
        select = "SELECT object, id, value FROM items WHERE owner = :owner AND object = :id ORDER BY number"
        [rows] = await self._run([(select, [{"owner": owner, "id": each} for each in ids])])
        found: dict[str, list[Item]] = {each: [] for each in ids}
        for identity, *item in rows:
            found[identity].append(Item(*item))
        return found

    async def find_items(self, owner: str, ids: Sequence[str], identity: str = "") -> dict[str, bytes]:
        """See Store."""
        return await self._found("value", owner, ids, identity)

    async def item_sizes(self, owner: str, ids: Sequence[str], identity: str = "") -> dict[str, int]:
        """See Store."""
        return await self._found("LENGTH(value)", owner, ids, identity)

    async def _found(self, column: str, owner: str, ids: Sequence[str], identity: str) -> dict[str, Any]:
        select = f"SELECT id, {column} FROM items WHERE owner = :owner AND id = :item AND :id IN ('', object) LIMIT 1"
        [rows] = await self._run([(select, [{"owner": owner, "id": identity, "item": each} for each in ids])])
        return {item: found for item, found in rows}

    async def remove_item(self, owner: str, identity: str, item: str) -> bool:
        """See Store."""
        values = {"owner": owner, "id": identity, "item": item}
        shrink = f"""
            UPDATE objects SET num_bytes = num_bytes - (
                SELECT {_ITEM_BYTES} + LENGTH(value) FROM items
                WHERE owner = :owner AND object = :id AND number = {_ITEM}
            ) WHERE {_OF} AND {_ITEM} IS NOT NULL RETURNING id
        """
        delete = f"DELETE FROM items WHERE owner = :owner AND object = :id AND number = {_ITEM}"
        rows = await self._run([(shrink, [values]), (delete, [values])], is_conditional=True)
        return bool(rows[0])

    async def page(
        self, owner: str, kind: Kind, *, after: str = "", limit: int, is_newest_first: bool
    ) -> list[Stored] | None:
        """See Store."""
        order, beyond = ("DESC", "<") if is_newest_first else ("ASC", ">")
        select = f"""
            SELECT {_HEAD} FROM objects WHERE owner = :owner AND kind = :kind
            {f"AND (created_s, id) {beyond} {_CREATED}" if after else ""}
            ORDER BY created_s {order}, id {order} LIMIT :limit
        """
        values = {"owner": owner, "kind": kind, "after": after, "limit": limit}
        known, rows = await self._run([(_CREATED.strip("()"), [values]), (select, [values])])
        return None if after and not known else [Stored(*row) for row in rows]

    async def claim(self, kind: Kind, unused_s: float) -> list[Claimed]:
        """See Store."""
        now = self._clock()
        update = "UPDATE objects SET used_s = :now WHERE kind = :kind AND used_s <= :before RETURNING owner, id, head"
        [rows] = await self._run([(update, [{"now": now, "kind": kind, "before": now - unused_s}])])
        return [Claimed(*row) for row in rows]

    async def usage(self) -> dict[str, Usage]:
        """See Store."""
        [rows] = await self._run([("SELECT owner, COUNT(*), SUM(num_bytes) FROM objects GROUP BY owner", [{}])])
        return {owner: Usage(num_objects, int(num_bytes)) for owner, num_objects, num_bytes in rows}

    async def drop(self, owner: str) -> Usage:
        """See Store."""
        [rows] = await self._run([("DELETE FROM objects WHERE owner = :owner RETURNING num_bytes", [{"owner": owner}])])
        return Usage(len(rows), sum(num_bytes for [num_bytes] in rows))

    async def sweep(self) -> None:
        """See Store."""
        self._num_written_bytes, bounds = 0, self._bounds
        statements: list[Statement] = []
        if bounds.age_s is not None:
            before = self._clock() - bounds.age_s
            statements.append(("DELETE FROM objects WHERE used_s <= :before", [{"before": before}]))
        if bounds.max_bytes is not None:
            max_bytes = int(bounds.max_bytes * (1 - SWEEP_SHARE))  # room for the writes until the next time
            statements.append((_SWEEP, [{**self._limits(), "max_bytes": max_bytes}]))
        elif self._has_owner_bounds:
            statements.append((_SWEEP, [self._limits()]))
        self._written.clear()
        await self._run(statements)

    async def close(self) -> None:
        """See Store."""
        await self._database.close()

    async def _run(self, statements: Sequence[Statement], *, is_conditional: bool = False) -> list[Rows]:
        if not any(values for _, values in statements):
            return [[] for _ in statements]
        return await self._breaker.call(partial(self._database.run, statements, is_conditional=is_conditional))

    async def _sweep_after(self, owner: str, num_bytes: int, num_objects: int) -> None:
        bounds = self._bounds
        self._num_written_bytes += num_bytes
        if _is_much(self._num_written_bytes, bounds.max_bytes):
            await self.sweep()
        elif self._has_owner_bounds:
            before = self._written.get(owner, Usage(0, 0))
            written = Usage(before.num_objects + num_objects, before.num_bytes + num_bytes)
            self._written[owner] = written
            if _is_much(written.num_bytes, bounds.owner_bytes) or _is_much(written.num_objects, bounds.owner_objects):
                del self._written[owner]
                await self._run([(_SWEEP_OWNER, [{**self._limits(), "owner": owner}])])

    @property
    def _has_owner_bounds(self) -> bool:
        return self._bounds.owner_bytes is not None or self._bounds.owner_objects is not None

    def _limits(self) -> dict[str, int]:
        limits = {name: getattr(self._bounds, name) for name in ("owner_bytes", "owner_objects", "max_bytes")}
        return {name: NO_LIMIT if limit is None else limit for name, limit in limits.items()}


def _statements(change: Change) -> Iterable[Statement]:
    """Yield the statements of a change, without owner and time. The first one locks the object, and returns a row."""
    match change:
        case Create():
            insert = """
                INSERT INTO objects VALUES (:owner, :id, :kind, :head, 0, 0, :num_bytes, :now, :now, :body)
                ON CONFLICT DO NOTHING RETURNING id
            """
            values = {"id": change.id, "kind": change.kind, "head": change.head, "body": change.body}
            yield insert, [values | {"num_bytes": _OBJECT_BYTES + len(change.head) + len(change.body)}]
            if change.items:
                yield from _statements(Append(change.id, change.items))
        case Append():
            num, size = len(change.items), _num_bytes(change)
            update = f"""
                UPDATE objects SET num_items = num_items + :num, num_bytes = num_bytes + :size, used_s = :now
                WHERE {_OF} RETURNING id
            """
            yield update, [{"id": change.id, "num": num, "size": size}]
            insert = f"INSERT INTO items SELECT owner, id, num_items - :back, :item, :value FROM objects WHERE {_OF}"
            numbered = zip(range(num, 0, -1), change.items, strict=True)
            yield (
                insert,
                [{"id": change.id, "back": back, "item": item.id, "value": item.value} for back, item in numbered],
            )
        case Replace():
            new = {"head": change.head} if change.body is None else {"head": change.head, "body": change.body}
            update = f"""
                UPDATE objects SET {"".join(f"{name} = :{name}, " for name in new)} version = version + 1,
                    num_bytes = num_bytes + :size - {" - ".join(f"LENGTH({name})" for name in new)}, used_s = :now
                WHERE {_OF} AND (version = :version OR :version < 0) RETURNING id
            """
            version = -1 if change.version is None else change.version
            yield update, [{"id": change.id, **new, "size": _num_bytes(change), "version": version}]
        case Delete():
            yield (
                f"DELETE FROM objects WHERE {_OF} AND kind = :kind RETURNING id",
                [{"id": change.id, "kind": change.kind}],
            )


def _is_much(num_written: int, limit: int | None) -> bool:
    return limit is not None and num_written > SWEEP_SHARE * limit
