"""What every place of the store does."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from frontend.store.postgres import PostgresDatabase
from frontend.store.redis_store import RedisStore
from frontend.store.sql import SqlStore
from frontend.store.types import (
    Append,
    Bounds,
    Change,
    Create,
    Delete,
    Item,
    Kind,
    NoAnswer,
    Replace,
    Store,
    StoreUnavailable,
    Usage,
)
from tests.frontend.gateway.conftest import RedisServer
from tests.frontend.store.conftest import Place, PostgresServer

A, B = "a" * 32, "b" * 32  # owners
KIND = Kind.CONVERSATION


def items(*ids: str) -> list[Item]:
    return [Item(each, f"value of {each}".encode()) for each in ids]


async def ids_of(store: Store, identity: str, owner: str = A, **page: Any) -> list[str] | None:
    found = await store.items(owner, identity, **{"is_newest_first": False, **page})
    return None if found is None else [item.id for item in found.items]


async def test_an_object_is_read_changed_and_deleted(place: Place) -> None:
    store = place.open()
    await store.create(A, KIND, "x", b"one", items("1", "2"))
    [found] = (await store.read(A, KIND, ["x", "y"])).values()
    assert (found.id, found.head, found.version, found.num_items) == ("x", b"one", 0, 2)
    assert abs(found.created_s - place.clock.now_s) < 1
    assert not await store.read(A, Kind.RESPONSE, ["x"])
    assert await store.replace(A, "x", b"two", version=0)
    assert not await store.replace(A, "x", b"three", version=0)
    assert await store.replace(A, "x", b"\0four", version=1)
    assert not await store.replace(A, "y", b"")
    assert (await store.read(A, KIND, ["x"]))["x"].head == b"\0four"
    assert not await store.delete(A, Kind.RESPONSE, "x")
    assert await store.delete(A, KIND, "x")
    assert not await store.delete(A, KIND, "x")
    assert not await store.read(A, KIND, ["x"]) and not await ids_of(store, "x")
    assert await store.usage() == {}


async def test_items_are_added_listed_found_and_removed(place: Place) -> None:
    store = place.open()
    await store.create(A, KIND, "x", b"", items("1", "2"))
    await store.create(A, KIND, "y", b"", items("2", "9"))
    assert await store.append(A, "x", items("3", "4"))
    assert not await store.append(A, "z", items("3"))
    assert await ids_of(store, "x") == ["1", "2", "3", "4"]
    assert await ids_of(store, "x", is_newest_first=True, limit=3) == ["4", "3", "2"]
    assert await ids_of(store, "x", after="2", limit=1) == ["3"]
    assert await ids_of(store, "x", after="2", is_newest_first=True) == ["1"]
    assert await ids_of(store, "x", after="9") is None
    of_all = await store.items_of(A, ["y", "z", "x"])
    assert {identity: [item.id for item in found] for identity, found in of_all.items()} == {
        "x": ["1", "2", "3", "4"],
        "y": ["2", "9"],
        "z": [],
    }
    assert await store.find_items(A, ["9", "8", "1"]) == {"9": b"value of 9", "1": b"value of 1"}
    assert await store.find_items(A, ["9", "1"], "y") == {"9": b"value of 9"}
    assert await store.item_sizes(A, ["9", "8", "1"]) == {"9": 10, "1": 10}
    assert await store.item_sizes(A, ["9", "1"], "y") == {"9": 10}
    assert await store.remove_item(A, "x", "2")
    assert not await store.remove_item(A, "x", "2")
    assert await ids_of(store, "x") == ["1", "3", "4"]
    assert await store.find_items(A, ["2"]) == {"2": b"value of 2"}  # that of the other object
    await store.delete(A, KIND, "y")
    assert await store.find_items(A, ["2", "9"]) == {}


async def test_items_may_have_no_id_or_one_that_is_there(place: Place) -> None:
    """A client sends the ids, and one that was there made a statement of PostgreSQL fail."""
    store = place.open()
    await store.create(A, KIND, "x", b"", [Item("", b"0"), Item("1", b"1"), Item("1", b"2"), Item("", b"3")])
    assert await store.append(A, "x", [Item("1", b"4")])
    found = await store.items_of(A, ["x"])
    assert found["x"] == [Item("", b"0"), Item("1", b"1"), Item("1", b"2"), Item("", b"3"), Item("1", b"4")]
    page = await store.items(A, "x", after="1", limit=1, is_newest_first=False)
    assert page is not None and page.items == [Item("1", b"2")]
    assert await store.remove_item(A, "x", "1")
    found = await store.items_of(A, ["x"])
    assert found["x"] == [Item("", b"0"), Item("1", b"2"), Item("", b"3"), Item("1", b"4")]


async def test_a_head_comes_without_the_body(place: Place) -> None:
    store = place.open()
    await store.create(A, KIND, "x", b"head", items("1"), body=b"1" * 1000)
    await store.create(A, KIND, "y", b"")
    [found] = (await store.read(A, KIND, ["x"])).values()
    assert (found.head, found.num_body_bytes) == (b"head", 1000)
    assert found.num_item_bytes == found.num_bytes - 1000 < 2000
    listed = await store.page(A, KIND, limit=9, is_newest_first=False)
    assert listed is not None and [each.num_body_bytes for each in listed] == [1000, 0]
    assert await store.bodies(A, ["y", "x", "z"]) == {"x": b"1" * 1000, "y": b""}
    assert await store.bodies(B, ["x"]) == await store.bodies(A, []) == {}
    assert await store.replace(A, "x", b"other")
    assert await store.bodies(A, ["x"]) == {"x": b"1" * 1000}
    assert await store.replace(A, "x", b"other", body=b"2" * 3000)
    assert await store.bodies(A, ["x"]) == {"x": b"2" * 3000}
    [changed] = (await store.read(A, KIND, ["x"])).values()
    assert changed.num_bytes == found.num_bytes + 2001


@pytest.mark.parametrize("identity", ["#", "#1", "#1:2", ":", "1:2", "{x}", "'"])
async def test_an_item_has_the_id_that_its_client_gave(place: Place, identity: str) -> None:
    """Redis lost one that began with `#`, as its own names did."""
    store = place.open()
    await store.create(A, KIND, "x", b"", items(identity, "", identity))
    assert await ids_of(store, "x") == [identity, "", identity]
    assert await ids_of(store, "x", after=identity) == ["", identity]
    assert await store.item_sizes(A, [identity]) == {identity: len(f"value of {identity}")}
    assert await store.remove_item(A, "x", identity) and await ids_of(store, "x") == ["", identity]


@pytest.mark.parametrize(
    ("asked", "ids", "has_more"),
    [
        ({}, "12345", False),
        ({"limit": 5}, "12345", False),
        ({"limit": 4}, "1234", True),
        ({"max_bytes": 250}, "12", True),
        ({"max_bytes": 200, "after": "1"}, "23", True),
        ({"max_bytes": 1}, "1", True),
        ({"max_bytes": 1, "after": "4"}, "5", False),
        ({"max_bytes": 250, "is_newest_first": True}, "54", True),
        ({"start": 1, "stop": 4}, "234", False),
        ({"start": 1, "stop": 4, "is_newest_first": True, "limit": 2}, "43", True),
        ({"stop": 3, "after": "2", "limit": 1}, "3", False),
        ({"start": 2, "after": "4", "is_newest_first": True}, "3", False),
        ({"start": 2, "after": "2"}, None, None),
        ({"stop": 3, "after": "4"}, None, None),
    ],
)
async def test_a_page_of_items_has_a_range_and_a_bound(
    place: Place, asked: dict[str, Any], ids: str | None, has_more: bool | None
) -> None:
    store = place.open()
    await store.create(A, KIND, "x", b"", [Item(each, bytes(100)) for each in "12345"])
    found = await store.items(A, "x", **{"is_newest_first": False, **asked})
    assert (found and "".join(item.id for item in found.items)) == ids
    assert (found and found.has_more) == has_more


async def test_objects_are_listed_in_the_order_of_their_creation(place: Place) -> None:
    store = place.open()
    for identity in ("m", "c", "x"):
        await store.create(A, KIND, identity, b"", items(identity))
    await store.create(A, Kind.CHAT, "other", b"")

    async def page(**given: Any) -> list[str] | None:
        found = await store.page(A, KIND, **{"limit": 9, "is_newest_first": False, **given})
        return None if found is None else [each.id for each in found]

    assert await page() == ["m", "c", "x"]
    assert await page(is_newest_first=True, limit=2) == ["x", "c"]
    assert await page(after="m", limit=1) == ["c"]
    assert await page(after="c", is_newest_first=True) == ["m"]
    assert await page(after="other") is None


async def test_another_owner_sees_and_changes_nothing(place: Place) -> None:
    store = place.open()
    await store.create(A, KIND, "x", b"head", items("1", "2"))
    await store.create(B, KIND, "own", b"head", items("3"))
    before = await store.usage()
    assert await store.read(B, KIND, ["x"]) == {}
    assert not await store.replace(B, "x", b"mine")
    assert not await store.append(B, "x", items("3"))
    assert await ids_of(store, "x", B) == []
    assert await ids_of(store, "x", B, after="1") is None
    assert await store.items_of(B, ["x"]) == {"x": []}
    assert await store.find_items(B, ["1"]) == await store.find_items(B, ["1"], "x") == {}
    assert not await store.remove_item(B, "x", "1")
    assert not await store.delete(B, KIND, "x")
    assert [each.id for each in await store.page(B, KIND, limit=9, is_newest_first=True) or ()] == ["own"]
    assert await store.page(B, KIND, after="x", limit=9, is_newest_first=True) is None
    await store.create(B, KIND, "x", b"of b", items("1"))  # ids are random: this tests the tables
    assert (await store.read(A, KIND, ["x"]))["x"].head == b"head" and await ids_of(store, "x") == ["1", "2"]
    assert (await store.drop(B)).num_objects == 2
    assert await store.usage() == {A: before[A]}


async def test_work_that_nobody_has_used_is_claimed_once(place: Place) -> None:
    store, other = place.open(), place.open() if place.name != "memory" else None
    await store.create(A, Kind.WORK, "old", b"a")
    await store.create(B, Kind.WORK, "used", b"b")
    await store.create(B, KIND, "other", b"c")
    place.clock.now_s += 60
    await store.replace(B, "used", b"d")
    claimed = list(
        itertools.chain(*await asyncio.gather(*(each.claim(Kind.WORK, 30) for each in (store, other) if each)))
    )
    assert [(each.owner, each.id, each.head) for each in claimed] == [(A, "old", b"a")]


async def test_usage_is_that_of_what_is_there(place: Place) -> None:
    """In Redis it is counted: an object whose keys had expired stayed in the count for ever."""
    store = place.open(age_s=100)
    await store.create(A, KIND, "x", b"1" * 1000, items("1", "2"))
    [used] = (await store.usage()).values()
    await store.append(A, "x", [Item("3", b"3" * 5000)])
    await store.replace(A, "x", b"1" * 3000)
    [more] = (await store.usage()).values()
    assert (used.num_objects, more.num_objects) == (1, 1) and 7000 <= more.num_bytes - used.num_bytes < 8000
    assert (await store.read(A, KIND, ["x"]))["x"].num_bytes == more.num_bytes
    await store.remove_item(A, "x", "3")
    await store.replace(A, "x", b"1" * 1000)
    assert list((await store.usage()).values()) == [used]
    place.clock.now_s += 101
    await store.create(A, KIND, "y", b"1" * 1000, items("1", "2"))
    await store.sweep()
    assert list((await store.usage()).values()) == [used]
    assert await store.drop(A) == used
    assert await store.usage() == {} and await store.drop(A) == Usage(0, 0)


async def test_the_age_of_an_object_is_that_of_its_last_use(place: Place) -> None:
    store = place.open(age_s=100)
    uses: dict[str, Callable[[], Awaitable[Any]]] = {
        "read": lambda: store.read(A, KIND, ["read"]),
        "append": lambda: store.append(A, "append", items("1")),
        "replace": lambda: store.replace(A, "replace", b""),
    }
    for identity in (*uses, "unused"):
        await store.create(A, KIND, identity, b"")
    place.clock.now_s += 60
    for use in uses.values():
        await use()
    place.clock.now_s += 60
    await store.sweep()
    found = await store.page(A, KIND, limit=9, is_newest_first=False)
    assert found is not None and [each.id for each in found] == [*uses]


async def test_beyond_a_bound_the_objects_that_were_used_longest_ago_go(place: Place) -> None:
    store = place.open(owner_objects=3)
    for identity in "pqr":
        await store.create(A, KIND, identity, b"")
        await store.create(B, KIND, identity, b"")
    place.clock.now_s += 2
    await store.read(A, KIND, ["p"])
    await store.create(A, KIND, "s", b"")
    assert set(await store.read(A, KIND, [*"pqrs"])) == {*"prs"}
    assert set(await store.read(B, KIND, [*"pqrs"])) == {*"pqr"}


async def test_an_owners_bytes_are_bounded(place: Place) -> None:
    store = place.open(owner_bytes=100_000)
    for number in range(60):
        await store.create(A, KIND, f"{number}", b"", [Item("", bytes(5000))])
        assert (await store.usage())[A].num_bytes < 110_000
    assert {"59", "50"} < set(await store.read(A, KIND, [f"{number}" for number in range(60)]))


async def test_owners_have_equal_shares_and_what_others_leave(place: Place) -> None:
    store = place.open(max_bytes=1_000_000)
    for number in range(4):
        await store.create(B, KIND, f"{number}", b"", [Item("", bytes(50_000))])
    for number in range(80):
        await store.create(A, KIND, f"{number}", b"", [Item("", bytes(20_000))])
    usage = await store.usage()
    assert usage[B].num_objects == 4  # it has less than its share, and was used longest ago
    assert 700_000 < usage[A].num_bytes <= 850_000
    for number in range(40):
        await store.create(B, KIND, f"more {number}", b"", [Item("", bytes(20_000))])
    await store.sweep()
    usage = await store.usage()
    assert all(450_000 < each.num_bytes < 550_000 for each in usage.values())


async def test_a_killed_server_is_unavailable_and_has_its_objects_when_it_is_back(server_place: Place) -> None:
    store = server_place.open()
    await store.create(A, KIND, "x", b"head", items("1"))
    server_place.stop()
    for each in (store, server_place.open()):
        with pytest.raises(StoreUnavailable):
            await each.read(A, KIND, ["x"])
    server_place.start()
    assert (await store.read(A, KIND, ["x"]))["x"].head == b"head"
    assert await store.append(A, "x", items("2")) and await ids_of(store, "x") == ["1", "2"]


async def test_a_server_that_hangs_is_unavailable_after_its_time(
    server_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ROLLBACK waited for a PostgreSQL that hung, without end."""
    monkeypatch.setattr("frontend.store.redis_store._TIMEOUT_S", 0.3)
    store = server_place.open()
    await store.create(A, KIND, "x", b"head")
    monkeypatch.setattr("frontend.store.postgres._TIMEOUT_S", 0.3)
    server_place.signal(signal.SIGSTOP)
    try:
        with pytest.raises(NoAnswer):
            await store.read(A, KIND, ["x"])
    finally:
        server_place.signal(signal.SIGCONT)
    monkeypatch.undo()
    with pytest.raises(StoreUnavailable, match="a moment ago"):
        await store.read(A, KIND, ["x"])
    assert await server_place.open().read(A, KIND, ["x"])


async def test_calls_at_the_same_time_lose_nothing(place: Place) -> None:
    store = place.open()
    others = [store] if place.name == "memory" else [store, place.open()]
    await store.create(A, KIND, "x", b"")
    adding = (each.append(A, "x", items(f"{number}")) for number in range(50) for each in others)
    assert all(await asyncio.gather(*adding))
    assert len((await store.items_of(A, ["x"]))["x"]) == 50 * len(others)


async def test_changes_are_made_together_or_not_at_all(place: Place) -> None:
    store = place.open()
    new = Create(KIND, "new", b"head", items("1"), b"body")
    await store.create(A, KIND, "x", b"", items("0"))
    await store.create(A, Kind.WORK, "work", b"")
    assert await store.write(A, new, Append("x", items("1")), Append("gone", items("2")), Replace("gone", b""))
    assert (await ids_of(store, "new"), await ids_of(store, "x")) == (["1"], ["0", "1"])
    end: list[Change] = [Delete(Kind.WORK, "work"), Append("x", items("3")), Replace("new", b"end", body=b"other")]
    assert await store.write(A, *end)
    before = await store.usage()
    assert not await store.write(A, *end)
    assert not await store.write(A, new, Append("x", items("4")))
    assert not await store.write(A, Replace("new", b"late", version=0), Append("x", items("4")))
    assert await store.usage() == before
    assert (await store.read(A, KIND, ["new"]))["new"].head == b"end"
    assert (await store.bodies(A, ["new"]), await ids_of(store, "x")) == ({"new": b"other"}, ["0", "1", "3"])


class Proxy:
    """Stands before a server, and loses the answers that have this text, with their connections."""

    def __init__(self, connect: Callable[[], Awaitable[Any]], lost: bytes) -> None:
        self._connect, self.lost, self.num_lost = connect, lost, 0
        self.num_answers = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await self._connect()
        sending = asyncio.create_task(self._pass_on(reader, server_writer))
        while answer := await server_reader.read(1 << 16):
            self.num_answers += 1
            if self.lost and self.lost in answer:
                self.lost, self.num_lost = b"", self.num_lost + 1
                break
            writer.write(answer)
        writer.close()
        server_writer.close()
        await sending

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()


async def test_a_write_of_redis_that_lost_its_answer_is_not_made_twice(
    redis_store_server: RedisServer, tmp_path: Path
) -> None:
    """The client repeats it, and doubled the items."""
    redis_store_server.run(redis.Redis.flushall)
    address = redis_store_server.url.removeprefix("unix://")
    proxy = Proxy(lambda: asyncio.open_unix_connection(address), b"")
    server = await asyncio.start_unix_server(proxy.serve, tmp_path / "s")
    store = RedisStore(f"unix://{tmp_path}/s", Bounds())
    await store.create(A, KIND, "x", b"", items("1"))
    for write, is_done in (
        (store.append(A, "x", items("2")), ["1", "2"]),
        (store.replace(A, "x", b"head", version=0), ["1", "2"]),
        (store.remove_item(A, "x", "1"), ["2"]),
        (store.create(A, KIND, "y", b"", items("1")), ["2"]),
        (store.delete(A, KIND, "y"), ["2"]),
    ):
        proxy.lost = b":1\r\n"
        assert await write
        assert await ids_of(store, "x") == is_done
    assert proxy.num_lost == 5
    assert (await store.read(A, KIND, ["x"]))["x"].version == 1
    await store.close()
    server.close()


async def behind_proxy(postgres: PostgresServer, folder: Path) -> tuple[SqlStore, Proxy, asyncio.Server]:
    """Return an empty store, the proxy before its PostgreSQL, and the server that runs the proxy."""
    postgres.run("DROP SCHEMA IF EXISTS conch CASCADE")
    name = ".s.PGSQL.5432"
    address = f"{postgres.url.partition('host=')[2]}/{name}"
    proxy = Proxy(lambda: asyncio.open_unix_connection(address), b"")
    server = await asyncio.start_unix_server(proxy.serve, folder / name)
    store = SqlStore(PostgresDatabase(f"postgresql://conch@/postgres?host={folder}"), Bounds())
    return store, proxy, server


async def test_postgresql_repeats_no_transaction_that_may_be_done(postgres: PostgresServer, tmp_path: Path) -> None:
    """It repeated them, and doubled items."""
    store, proxy, server = await behind_proxy(postgres, tmp_path)
    await store.create(A, KIND, "x", b"")
    for lost, is_done, ids in ((b"COMMIT", False, ["1"]), (b"BEGIN", True, ["1", "1"])):
        proxy.lost = lost
        if is_done:
            assert await store.append(A, "x", items("1"))
        else:
            with pytest.raises(StoreUnavailable):
                await store.append(A, "x", items("1"))
        assert await ids_of(store, "x") == ids
    assert proxy.num_lost == 2
    await store.close()
    server.close()


async def test_many_items_take_few_round_trips_to_postgresql(postgres: PostgresServer, tmp_path: Path) -> None:
    """Each item took one, and 4,096 items of an input more than 10 s on a slow network."""
    store, proxy, server = await behind_proxy(postgres, tmp_path)
    ids = [f"{number}" for number in range(2000)]
    await store.create(A, KIND, "x", b"", items(*ids))
    assert list(await store.item_sizes(A, ids)) == list(await store.find_items(A, ids)) == ids
    assert list(await store.read(A, KIND, [*ids, "x"])) == ["x"]
    assert proxy.num_answers < 1000
    await store.close()
    server.close()
