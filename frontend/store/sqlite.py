"""A database in one file, for the processes of one machine, or in the memory of one process."""

from __future__ import annotations

import asyncio
import itertools
import os
import sqlite3
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from frontend.settings import SettingsError
from frontend.store.sql import MIGRATIONS, Rows, Statement
from frontend.store.types import StoreUnavailable

_WAIT_S = 5.0  # for the writes of other processes
_PAUSE_S = 0.05
_MEMORY_PAGE_BYTES = 65536  # a row that fits no second time into a page wastes the rest of it
_PRAGMAS = (
    "journal_mode = WAL",  # readers do not wait for a writer
    "synchronous = NORMAL",  # what was written survives the death of the process; of the machine, up to the last second
    "foreign_keys = ON",
    "secure_delete = ON",  # deleted bytes are overwritten
)


MEMORY = Path(":memory:")


class SqliteDatabase:
    """See Database. One thread makes all calls.

    Args:
        path: of the file; MEMORY: there is none.

    Raises:
        SettingsError: the file cannot be opened, or is none of ours.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(1, "store")
        try:
            if path != MEMORY:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._connection = self._thread.submit(self._open).result()
        except (OSError, sqlite3.Error) as exc:
            raise SettingsError(f"--store {path}: {exc}") from exc

    def _open(self) -> sqlite3.Connection:
        deadline_s = time.monotonic() + _WAIT_S
        while True:
            connection = sqlite3.connect(self._path, _WAIT_S, isolation_level=None, check_same_thread=False)
            try:
                self._prepare(connection)
                return connection
            except sqlite3.Error as exc:
                connection.close()
                is_busy = isinstance(exc, sqlite3.OperationalError) and exc.sqlite_errorcode == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > deadline_s:
                    raise
            time.sleep(_PAUSE_S)  # SQLite itself does not wait for another process that turns the journal on

    def _prepare(self, connection: sqlite3.Connection) -> None:
        if self._path == MEMORY:
            connection.execute(f"PRAGMA page_size = {_MEMORY_PAGE_BYTES}")
        elif not _version(connection):
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only before the first table
        for pragma in _PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("BEGIN IMMEDIATE")
        version = _version(connection)
        if version > len(MIGRATIONS):
            raise sqlite3.DatabaseError(f"has tables of version {version}, and this Conch reads {len(MIGRATIONS)}")
        for statement in itertools.chain(*MIGRATIONS[version:]):
            connection.execute(statement.format(bytes="BLOB", float="REAL"))
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")

    async def run(self, statements: Sequence[Statement], *, is_conditional: bool = False) -> list[Rows]:
        """See Database."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, statements, is_conditional)

    def _run(self, statements: Sequence[Statement], is_conditional: bool) -> list[Rows]:
        rows: list[Rows] = []
        try:
            with self._connection as connection:
                connection.execute("BEGIN IMMEDIATE")
                for text, values in statements:
                    rows.append([row for each in values for row in connection.execute(text, each)])
                    if is_conditional and not rows[0]:
                        break
            if self._path != MEMORY and any("DELETE" in text for text, _ in statements):
                self._connection.execute("PRAGMA incremental_vacuum").fetchall()
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # the log has it no more
        except sqlite3.DatabaseError as exc:
            raise StoreUnavailable(f"the store: {exc}") from exc
        return rows

    async def close(self) -> None:
        """See Database."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown()


def _version(connection: sqlite3.Connection) -> int:
    [version] = connection.execute("PRAGMA user_version").fetchone()
    assert isinstance(version, int)
    return version
