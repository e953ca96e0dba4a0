"""What single places of the store do: their files, processes, versions and memory."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from frontend.settings import Settings, SettingsError
from frontend.store.place import bounds_of, check_place, open_store, place_of
from frontend.store.postgres import PostgresDatabase
from frontend.store.redis_store import RedisStore
from frontend.store.shared import SharedDatabase, serve_database
from frontend.store.sql import Rows, SqlStore, Statement
from frontend.store.sqlite import MEMORY, SqliteDatabase
from frontend.store.types import Bounds, Item, Kind, NoAnswer, StoreUnavailable
from tests.frontend.gateway.conftest import RedisServer
from tests.frontend.store.conftest import Clock, PostgresServer

A = "a" * 32
KIND = Kind.CONVERSATION
WRITER = """
import asyncio, itertools, sys
from pathlib import Path
from frontend.store.sql import SqlStore
from frontend.store.sqlite import SqliteDatabase
from frontend.store.types import Bounds, Item, Kind

async def main(path, name, num_objects):
    store = SqlStore(SqliteDatabase(Path(path)), Bounds())
    for number in range(int(num_objects)):
        await store.create("a" * 32, Kind.CONVERSATION, f"{name}{number}", b"head", [Item("", b"1"), Item("", b"2")])
        await store.append("a" * 32, "shared", [Item("", b"1")])
        print(f"{name}{number}", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def writing(path: Path, name: str, num_objects: int) -> subprocess.Popen[str]:
    """Start a process that stores objects, and prints the id of each one that is stored."""
    command = [sys.executable, "-c", WRITER, str(path), name, str(num_objects)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def file_store(path: Path, **bounds: float) -> SqlStore:
    return SqlStore(SqliteDatabase(path), Bounds(**bounds))  # type: ignore[arg-type]


async def test_what_a_killed_process_has_stored_is_there(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writing(path, "x", 1_000_000) as writer:
        assert writer.stdout is not None
        stored = [writer.stdout.readline().strip() for _ in range(50)]
        writer.kill()
        stored += writer.stdout.read().split("\n")[:-1]
    store = file_store(path)
    assert set(await store.read(A, KIND, stored)) == set(stored)
    assert {len(found) for found in (await store.items_of(A, stored)).values()} == {2}
    await store.close()


async def test_processes_open_and_write_one_file_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    writers = [writing(path, name, 40) for name in "xyz"]
    store = file_store(path)
    await store.create(A, KIND, "shared", b"")
    printed = [line for writer in writers for line in writer.communicate()[0].split()]
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert set(await store.read(A, KIND, printed)) == set(printed) and len(printed) == 120
    await store.close()


def test_a_new_file_is_opened_by_many_at_the_same_time(tmp_path: Path) -> None:
    """SQLite refuses one that turns the journal on while another does."""

    def opened(number: int) -> None:
        SqliteDatabase(tmp_path / f"{number // 8}.db")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(opened, range(320)))


async def test_a_file_is_its_users_alone_and_keeps_nothing_that_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = file_store(path)
    await store.create(A, KIND, "x", b"secret head", [Item("1", b"secret item " + bytes(100_000))])
    files = [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm")]
    assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}
    assert any(b"secret" in each.read_bytes() for each in files)
    await store.drop(A)
    assert not any(b"secret" in each.read_bytes() for each in files)
    assert sum(each.stat().st_size for each in files) < 200_000
    await store.close()


async def test_only_a_deletion_empties_the_log_of_a_file(tmp_path: Path) -> None:
    """Each page of items did: its statement began with WITH, like that of a sweep."""
    store, log = file_store(tmp_path / "store.db", owner_bytes=100_000), tmp_path / "store.db-wal"
    await store.create(A, KIND, "x", b"head", [Item("1", b"1")])
    await store.items(A, "x", is_newest_first=False)
    assert log.stat().st_size
    await store.sweep()
    assert not log.stat().st_size
    await store.close()


async def test_a_file_that_was_copied_is_whole(tmp_path: Path) -> None:
    """The commands of the page about backups."""
    store = file_store(tmp_path / "store.db")
    await store.create(A, KIND, "x", b"head", [Item("1", b"1")])
    with sqlite3.connect(tmp_path / "store.db") as source, sqlite3.connect(tmp_path / "copy.db") as target:
        source.backup(target)
    await store.close()
    copy = file_store(tmp_path / "copy.db")
    assert (await copy.read(A, KIND, ["x"]))["x"].head == b"head"
    await copy.close()


@pytest.mark.parametrize(
    ("content", "reason"), [(b"text" * 1000, "file is not a database"), (None, "unable to open|No such|Is a directory")]
)
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "store.db"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=f"--store {path}: .*({reason})"):
        open_store(Settings(store=str(path)))


async def test_tables_of_a_newer_version_are_refused(tmp_path: Path, postgres: PostgresServer) -> None:
    path = tmp_path / "store.db"
    await file_store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(SettingsError, match="has tables of version 99, and this Conch reads 2"):
        file_store(path)
    database = PostgresDatabase(postgres.url)
    await database.run([])
    await database.close()
    postgres.run("UPDATE conch.version SET number = 99")
    with pytest.raises(StoreUnavailable, match="has tables of version 99, and this Conch reads 2"):
        await PostgresDatabase(postgres.url).run([])
    postgres.run("DROP SCHEMA conch CASCADE")


async def test_tables_of_version_1_are_replaced(tmp_path: Path, postgres: PostgresServer) -> None:
    """They had no column `body`, and each call failed."""
    old = (
        "CREATE TABLE objects (owner TEXT)",
        "CREATE TABLE items (owner TEXT)",
        "CREATE INDEX items_by_id ON items (owner)",
    )
    with sqlite3.connect(tmp_path / "store.db") as connection:
        for statement in (*old, "PRAGMA user_version = 1"):
            connection.execute(statement)
    postgres.run("DROP SCHEMA IF EXISTS conch CASCADE")
    version = "CREATE TABLE version (number BIGINT NOT NULL)", "INSERT INTO version VALUES (1)"
    postgres.run("; ".join(("CREATE SCHEMA conch", "SET search_path = conch", *old, *version)))
    for _ in range(2):
        for store in (file_store(tmp_path / "store.db"), SqlStore(PostgresDatabase(postgres.url), Bounds())):
            await store.create(A, KIND, "x", b"head", [Item("1", b"1")], b"body")
            assert await store.bodies(A, ["x"]) == {"x": b"body"}
            await store.close()


async def test_frontends_that_start_together_make_the_tables_once(postgres: PostgresServer) -> None:
    postgres.run("DROP SCHEMA IF EXISTS conch CASCADE")
    databases = [PostgresDatabase(postgres.url) for _ in range(4)]
    await asyncio.gather(*(each.run([]) for each in databases))
    await asyncio.gather(*(each.close() for each in databases))


async def test_workers_whose_shared_memory_is_gone_find_an_empty_one(tmp_path: Path) -> None:
    path = tmp_path / "s"
    store = SqlStore(SharedDatabase(str(path)), Bounds())
    with pytest.raises(StoreUnavailable, match="the process that keeps conversations does not answer"):
        await store.read(A, KIND, ["x"])
    for _ in range(2):
        database = SqliteDatabase(MEMORY)
        writers: list[asyncio.StreamWriter] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)  # noqa: B023
            await serve_database(database, reader, writer)  # noqa: B023

        server = await asyncio.start_unix_server(serve, path)
        assert await store.read(A, KIND, ["x"]) == {}
        await store.create(A, KIND, "x", b"head")
        server.close()
        for writer in writers:
            writer.close()
        await database.close()
        os.unlink(path)
    await store.close()


async def test_a_place_that_is_full_is_unavailable_and_keeps_the_rest(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "store.db")
    store = SqlStore(database, Bounds())
    await store.create(A, KIND, "x", b"head")
    await database.run([("PRAGMA max_page_count = 20", [{}])])
    with pytest.raises(StoreUnavailable, match="database or disk is full"):
        await store.append(A, "x", [Item("1", bytes(1_000_000))])
    [found] = (await store.read(A, KIND, ["x"])).values()
    assert (found.head, found.num_items) == (b"head", 0)
    await store.close()


class Full(SqliteDatabase):
    """A database on a disk that is full."""

    async def run(self, statements: Sequence[Statement], *, is_conditional: bool = False) -> list[Rows]:
        """See Database."""
        if any("UPDATE" in text for text, _ in statements):
            raise StoreUnavailable("database or disk is full")
        return await super().run(statements, is_conditional=is_conditional)


async def test_a_full_disk_is_read() -> None:
    """A read that counted as a use failed with it."""
    clock = Clock()
    store = SqlStore(Full(MEMORY), Bounds(), clock)
    await store.create(A, KIND, "x", b"head")
    clock.now_s += 60
    assert await store.read(A, KIND, ["x"])
    await store.close()


async def test_a_full_redis_is_read_and_emptied(redis_store_server: RedisServer) -> None:
    """A read failed, since it counts as a use."""
    redis_store_server.run(redis.Redis.flushall)
    store = RedisStore(redis_store_server.url, Bounds())
    await store.create(A, KIND, "x", b"head", [Item("1", b"1"), Item("2", b"2")])
    redis_store_server.run(lambda client: client.config_set("maxmemory", 1))
    try:
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            await store.append(A, "x", [Item("3", b"3")])
        assert (await store.read(A, KIND, ["x"]))["x"].num_items == 2
        assert (await store.items_of(A, ["x"]))["x"] == [Item("1", b"1"), Item("2", b"2")]
        assert await store.remove_item(A, "x", "1")
        assert not await store.delete(A, KIND, "y")
        assert await store.delete(A, KIND, "x") and not await store.usage()
    finally:
        redis_store_server.run(lambda client: client.config_set("maxmemory", 0))
    await store.close()


MEASURE = """
import asyncio, sys
from frontend.store.sql import SqlStore
from frontend.store.sqlite import MEMORY, SqliteDatabase
from frontend.store.types import Bounds, Item, Kind
from tests.processes import max_memory_bytes
import os

async def main(bound, total, size):
    store = SqlStore(SqliteDatabase(MEMORY), Bounds(max_bytes=bound))
    before = max_memory_bytes(os.getpid())
    written = 0
    number = 0
    while written < total:
        items = [Item(f"msg_{number:026}{place:06}", os.urandom(size)) for place in range(4)]
        await store.create(f"{number % 8:032}", Kind.RESPONSE, f"resp_{number:032}", os.urandom(600), items)
        written += 600 + 4 * size
        number += 1
    usage = (await store.usage()).values()
    print(sum(each.num_bytes for each in usage), max_memory_bytes(os.getpid()) - before, number)

asyncio.run(main(*map(int, sys.argv[1:])))
"""


@pytest.mark.parametrize("item_bytes", [2000, 20_000])
def test_the_bound_of_the_memory_is_that_of_the_process(item_bytes: int) -> None:
    """The sizes of the claim are 1 GB in 256 MB: `python -c MEASURE 256000000 1000000000 2000`."""
    bound = 16_000_000
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(bound), str(2 * bound), str(item_bytes)],
        capture_output=True,
        text=True,
        check=True,
    )
    num_bytes, memory_bytes, _ = map(int, done.stdout.split())
    assert 0.9 * bound < num_bytes <= bound
    assert memory_bytes < bound + 8_000_000  # with the imports, and the memory of the last sweep


@pytest.mark.parametrize(
    ("store", "age_s", "max_bytes"),
    [("", 3600, 64 << 20), ("memory", 3600, 64 << 20), ("/x", 30 * 86400, None), ("redis://x", 30 * 86400, None)],
)
def test_usual_bounds_follow_from_the_place(store: str, age_s: float, max_bytes: int | None) -> None:
    assert bounds_of(Settings(store=store)) == Bounds(age_s=age_s, max_bytes=max_bytes)
    given = Settings(store=store, store_age_s=7, store_bytes=8, store_key_bytes=9, store_key_objects=10)
    assert bounds_of(given) == Bounds(age_s=7, max_bytes=8, owner_bytes=9, owner_objects=10)


@pytest.mark.parametrize(
    ("store", "shown"),
    [
        ("", "memory"),
        ("none", "none"),
        ("/srv/store.db", "/srv/store.db"),
        ("./store.db", "./store.db"),
        ("redis://user:pass@word@host:6379/1?password=word", "redis://host:6379/1"),
        ("unix:///run/redis.sock?password=word", "unix:///run/redis.sock"),
        ("postgresql://user:password@a:5432,b:5432/conch?password=word", "postgresql://a:5432,b:5432/conch"),
        ("postgresql://user:pass/word@host/conch", "postgresql://host/conch"),
    ],
)
def test_the_log_names_the_place_without_credentials(store: str, shown: str) -> None:
    assert place_of(Settings(store=store)) == shown


@pytest.mark.parametrize("url", ["redis://host/?socket_timeout=x", "redis://host:port"])
def test_a_url_that_breaks_a_rule_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(SettingsError, match="--store: "):
        check_place(Settings(store=url))


def test_postgresql_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    monkeypatch.delitem(sys.modules, "frontend.store.postgres")
    with pytest.raises(SettingsError, match="needs the extra `postgres`"):
        check_place(Settings(store="postgresql://host/conch"))


async def test_all_workers_calls_end_when_the_shared_memory_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call waited its whole time behind the one before."""
    served: list[asyncio.StreamWriter] = []

    def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)

    server = await asyncio.start_unix_server(hang, tmp_path / "s")
    monkeypatch.setattr("frontend.store.shared._TIMEOUT_S", 0.2)
    store = SqlStore(SharedDatabase(str(tmp_path / "s")), Bounds())
    calls = await asyncio.gather(*(store.read(A, KIND, ["x"]) for _ in range(20)), return_exceptions=True)
    assert {type(each) for each in calls} == {NoAnswer} and len(served) < 10
    await store.close()
    for writer in served:
        writer.close()
    server.close()
