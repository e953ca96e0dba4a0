"""A database in PostgreSQL, for frontends of several machines."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import re
from collections.abc import Sequence

import asyncpg

from frontend.store.sql import MIGRATIONS, Rows, Statement
from frontend.store.types import NoAnswer, StoreUnavailable

_SCHEMA = "conch"
_MAX_CONNECTIONS = 8
_TIMEOUT_S = 10.0
_NUM_TRIES = 3  # another transaction wanted the same rows in another order, or another server has taken over
_LOCK = 0x636F6E6368  # of the frontend that makes the tables
_AGAIN = (
    asyncpg.DeadlockDetectedError,
    asyncpg.ConnectionDoesNotExistError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # of a connection that dies
    asyncpg.ReadOnlySQLTransactionError,  # a replica that was the primary
    asyncpg.AdminShutdownError,
    ConnectionError,
)


class PostgresDatabase:
    """See Database. It connects at the first call, and again after a loss.

    Args:
        url: postgresql://USER:PASSWORD@HOST/DATABASE, also with several hosts.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool: asyncpg.Pool | None = None
        self._opening = asyncio.Lock()

    async def run(self, statements: Sequence[Statement], *, is_conditional: bool = False) -> list[Rows]:
        """See Database."""
        for num_left in reversed(range(_NUM_TRIES)):
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    return await self._run(statements, is_conditional)
            except _AGAIN as exc:
                if not num_left:
                    raise StoreUnavailable(f"PostgreSQL: {exc}") from exc
                await asyncio.sleep(0.1)
            except TimeoutError as exc:
                raise NoAnswer("PostgreSQL: no answer") from exc
            except (OSError, asyncpg.PostgresError) as exc:
                raise StoreUnavailable(f"PostgreSQL: {exc}") from exc
            except ValueError:  # it may have a part of the password
                raise StoreUnavailable("PostgreSQL: its URL cannot be read") from None
        raise AssertionError

    async def _run(self, statements: Sequence[Statement], is_conditional: bool) -> list[Rows]:
        rows: list[Rows] = []
        pool = await self._opened()
        async with pool.acquire() as connection:
            try:
                await connection.execute("BEGIN")
                for text, values in statements:
                    numbered, names = _numbered(text)
                    found = await connection.fetchmany(numbered, [[each[name] for name in names] for each in values])
                    rows.append([tuple(row) for row in found])
                    if is_conditional and not rows[0]:
                        break
                await _commit(connection)
            except BaseException:
                with contextlib.suppress(asyncpg.InterfaceError):  # it is closed
                    connection.terminate()  # a ROLLBACK would wait for a server that hangs
                raise
        return rows

    async def _opened(self) -> asyncpg.Pool:
        async with self._opening:
            if self._pool is None:
                settings = {"search_path": _SCHEMA}
                pool = await asyncpg.create_pool(
                    self._url,
                    min_size=0,
                    max_size=_MAX_CONNECTIONS,
                    server_settings=settings,
                    target_session_attrs="read-write",
                )
                try:
                    async with pool.acquire() as connection, connection.transaction():
                        await _migrate(connection)
                except BaseException:
                    pool.terminate()
                    raise
                self._pool = pool
        return self._pool

    async def close(self) -> None:
        """See Database."""
        if self._pool is not None:
            with contextlib.suppress(TimeoutError):  # the server hangs
                async with asyncio.timeout(_TIMEOUT_S):
                    await self._pool.close()


async def _commit(connection: asyncpg.Connection) -> None:
    try:
        await connection.execute("COMMIT")
    except _AGAIN as exc:  # it may be done: a repetition would add items twice
        raise StoreUnavailable(f"PostgreSQL: {exc}") from exc


async def _migrate(connection: asyncpg.Connection) -> None:
    await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
    await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")
    await connection.execute("CREATE TABLE IF NOT EXISTS version (number BIGINT NOT NULL)")
    version = await connection.fetchval("SELECT number FROM version") or 0
    if version > len(MIGRATIONS):
        raise StoreUnavailable(f"PostgreSQL has tables of version {version}, and this Conch reads {len(MIGRATIONS)}")
    for statement in itertools.chain(*MIGRATIONS[version:]):
        await connection.execute(statement.format(bytes="BYTEA", float="DOUBLE PRECISION"))
    await connection.execute("DELETE FROM version")
    await connection.execute("INSERT INTO version VALUES ($1)", len(MIGRATIONS))


@functools.cache
def _numbered(text: str) -> tuple[str, Sequence[str]]:
    """Return a statement with the parameters $1, $2, ... in place of names, and their names."""
    names: dict[str, int] = {}
    numbered = re.sub(r":([a-z_]+)", lambda name: f"${names.setdefault(name[1], len(names) + 1)}", text)
    return numbered, tuple(names)
