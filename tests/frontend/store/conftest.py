"""The places of the store, each a real one."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import redis

from frontend.store.postgres import PostgresDatabase
from frontend.store.redis_store import RedisStore
from frontend.store.shared import SharedDatabase, serve_database
from frontend.store.sql import SqlStore
from frontend.store.sqlite import MEMORY, SqliteDatabase
from frontend.store.types import Bounds, Store
from tests.frontend.gateway import conftest as of_redis
from tests.waiting import wait_until

_BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


class Clock:
    """Unix time that a test sets. Each reading is a moment later, so that no two objects are equally old."""

    def __init__(self) -> None:
        self.now_s = 1e9

    def __call__(self) -> float:
        self.now_s += 0.001
        return self.now_s


class PostgresServer:
    """A PostgreSQL on a Unix socket, that can be killed and started.

    Args:
        folder: for its user, which is not root.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._user = "postgres" if os.getuid() == 0 else None
        self.url = f"postgresql://conch@/postgres?host={folder}"
        self._process: subprocess.Popen[bytes] | None = None
        if self._user:
            os.chown(folder, pwd.getpwnam(self._user).pw_uid, -1)
        command = [str(_BINARIES[-1] / "initdb"), "-D", str(folder / "data"), "-U", "conch", "-A", "trust", "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, user=self._user, cwd=folder)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        wait_until(self._is_up, "PostgreSQL")

    def _is_up(self) -> bool:
        if self._process is None or self._process.poll() is not None:  # the first tries find parts of a killed one
            command = [str(_BINARIES[-1] / "postgres"), "-D", f"{self._folder}/data", "-k", str(self._folder)]
            command += ["-c", "listen_addresses=", "-c", "shared_buffers=16MB"]
            self._process = subprocess.Popen(
                command, user=self._user, cwd=self._folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        ready = [str(_BINARIES[-1] / "pg_isready"), "-q", "-h", str(self._folder)]
        return subprocess.run(ready, check=False).returncode == 0

    def stop(self) -> None:
        """Kill it."""
        if self._process is not None:
            for number in (signal.SIGSTOP, signal.SIGKILL):  # a child answers for some time after the first process
                _signal(self, number)
            self._process.wait()
            self._process = None

    def run(self, statement: str) -> str:
        """Return the result of a statement."""
        command = [str(_BINARIES[-1] / "psql"), "-qAt", "-v", "ON_ERROR_STOP=1", "-c", statement, self.url]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def running_server(name: str) -> Iterator[PostgresServer | of_redis.RedisServer]:
    """Run one of SERVERS until the end of the block; its content survives a kill."""
    if (of_redis.SERVER is None) if name == "redis" else not _BINARIES:
        pytest.skip(f"needs the Debian package {'redis-server' if name == 'redis' else name}")
    with tempfile.TemporaryDirectory(prefix="conch-", dir="/tmp", ignore_cleanup_errors=True) as path:
        folder = Path(path)
        server = of_redis.RedisServer(folder, is_kept=True) if name == "redis" else PostgresServer(folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_server("postgresql") as server:
        assert isinstance(server, PostgresServer)
        yield server


@pytest.fixture(scope="session")
def redis_store_server() -> Iterator[of_redis.RedisServer]:
    with running_server("redis") as server:
        assert isinstance(server, of_redis.RedisServer)
        yield server


class Place:
    """Opens stores in one place.

    Args:
        url: for a frontend.
        stop: kills the server of the place.
        start: starts it again.
        signal: sends a signal to its processes.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[Bounds, Clock], Store],
        url: str = "",
        stop: Callable[[], None] = lambda: None,
        start: Callable[[], None] = lambda: None,
        signal: Callable[[int], None] = lambda number: None,
    ) -> None:
        self.name, self.url = name, url
        self.clock = Clock()
        self.stop, self.start, self.signal = stop, start, signal
        self.stack = AsyncExitStack()
        self._make = make

    def open(self, **bounds: float) -> Store:
        """Return a store, which is closed after the test."""
        store = self._make(Bounds(**bounds), self.clock)  # type: ignore[arg-type]
        self.stack.push_async_callback(store.close)
        return store


SERVERS = ("redis", "postgresql")
PLACES = ("memory", "shared", "file", *SERVERS)


@pytest.fixture(params=SERVERS)
async def server_place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Return an empty place with a server of its own."""
    place = await _place(request, request.param, tmp_path)
    async with place.stack:
        yield place


@pytest.fixture(params=PLACES)
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """Return an empty place, one after the other."""
    place = await _place(request, request.param, tmp_path)
    async with place.stack:
        yield place


async def _place(request: pytest.FixtureRequest, name: str, folder: Path) -> Place:
    match name:
        case "memory":
            return Place(name, lambda *rest: SqlStore(SqliteDatabase(MEMORY), *rest))
        case "shared":
            database = SqliteDatabase(MEMORY)
            path = str(folder / "s")
            server = await asyncio.start_unix_server(partial(serve_database, database), path)
            place = Place(name, lambda *rest: SqlStore(SharedDatabase(path), *rest))
            place.stack.push_async_callback(database.close)
            place.stack.callback(server.close)
            return place
        case "file":
            return Place(name, lambda *rest: SqlStore(SqliteDatabase(folder / "store.db"), *rest))
        case "redis":
            redis_server: of_redis.RedisServer = request.getfixturevalue("redis_store_server")
            redis_server.run(redis.Redis.flushall)
            url = redis_server.url
            signal = partial(_signal, redis_server)
            return Place(name, lambda *rest: RedisStore(url, *rest), url, redis_server.stop, redis_server.start, signal)
        case _:
            postgres: PostgresServer = request.getfixturevalue("postgres")
            postgres.run("DROP SCHEMA IF EXISTS conch CASCADE")
            make = partial(_postgres_store, postgres.url)
            return Place(name, make, postgres.url, postgres.stop, postgres.start, partial(_signal, postgres))


def _signal(server: PostgresServer | of_redis.RedisServer, number: int) -> None:
    """Send a signal to a server and its children."""
    assert server._process is not None
    pid = server._process.pid
    for each in (pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())):
        with suppress(ProcessLookupError):  # a child has ended
            os.kill(each, number)


def _postgres_store(url: str, bounds: Bounds, clock: Clock) -> Store:
    return SqlStore(PostgresDatabase(url), bounds, clock)
