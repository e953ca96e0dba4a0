"""A gigabyte of conversations by several keys in a bound of 256 MB, at each place of the store."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import redis

from frontend.caller import KeyRole
from frontend.store.types import SWEEP_SHARE
from tests.frontend.gateway.conftest import RedisServer
from tests.frontend.gateway.key_files import KeyFile
from tests.frontend.store.conftest import SERVERS, PostgresServer, running_server
from tests.launching import free_port, running
from tests.processes import max_memory_bytes
from tests.waiting import wait_until

BOUND, NUM_BYTES = 256_000_000, 1_000_000_000
ITEM_BYTES, NUM_ITEMS, NUM_REQUESTS = 12_000, 20, 4  # of a request, and of a conversation
WRITERS = ("alice", "bob", "carol", "dave")
NUM_BYTES_OF_FEW = BOUND // 32  # of a key that writes no more: less than its share
OF_REQUESTS_BYTES = 32_000_000  # memory for the requests themselves
CONVERSATIONS = "/v1/conversations"
TEXT = secrets.token_urlsafe(100_000)  # PostgreSQL compresses others
# The largest size of a place, as a share of the bound. PostgreSQL keeps deleted rows until its next vacuum.
LARGEST_SHARES = {"memory": 0.0, "file": 1.1, "redis": 1.25, "postgresql": 1.25 * NUM_BYTES / BOUND}


@contextmanager
def place_of(name: str, folder: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    """Yield a value of `--store`, and the bytes that the place takes outside the frontend."""
    if name in SERVERS:
        with running_server(name) as server:
            yield server.url, lambda: size_of(server)
    elif name == "file":
        path = folder / "store.db"
        yield str(path), lambda: sum(each.stat().st_size for each in folder.glob(f"{path.name}*"))
    else:
        yield name, lambda: 0


def size_of(server: PostgresServer | RedisServer) -> int:
    if isinstance(server, RedisServer):
        return int(server.run(redis.Redis.info)["used_memory"])
    return int(server.run("SELECT pg_total_relation_size('conch.objects') + pg_total_relation_size('conch.items')"))


def items() -> dict[str, Any]:
    starts = [secrets.randbelow(len(TEXT) - ITEM_BYTES) for _ in range(NUM_ITEMS)]
    return {"items": [{"role": "user", "content": TEXT[start : start + ITEM_BYTES]} for start in starts]}


async def write(session: aiohttp.ClientSession, headers: dict[str, str], num_bytes: int) -> list[str]:
    """Write conversations of a key, and return their ids."""
    written: list[str] = []
    for _ in range(num_bytes // (ITEM_BYTES * NUM_ITEMS * NUM_REQUESTS)):
        created = await session.post(CONVERSATIONS, json=items(), headers=headers)
        written.append((await created.json())["id"])
        for _ in range(NUM_REQUESTS - 1):
            added = await session.post(f"{CONVERSATIONS}/{written[-1]}/items", json=items(), headers=headers)
            await added.read()
    return written


@pytest.mark.faults
@pytest.mark.parametrize(("name", "num_workers"), [("memory", 2), ("file", 1), ("redis", 1), ("postgresql", 1)])
async def test_a_gigabyte_stays_within_its_bound(name: str, num_workers: int, tmp_path: Path) -> None:
    """The memory of one process alone is in `tests/frontend/store/test_places.py`."""
    key_file, port = KeyFile(tmp_path / "keys.json"), free_port()
    key_file.add("admin", role=KeyRole.ADMIN)
    for key in ("few", *WRITERS):
        key_file.add(key)
    with place_of(name, tmp_path) as (store, num_bytes_there):
        words = ["api", "--port=0", f"--admin-port={port}", f"--workers={num_workers}", "--triton=127.0.0.1:1"]
        words += [f"--store={store}", f"--store-bytes={BOUND}", f"--key-file={key_file.path}"]
        with running(tmp_path, *words) as frontend:
            wait_until(lambda: frontend.log.count(" listens on http") == num_workers, "the workers listen")
            process = psutil.Process(frontend.process.pid)
            pids = [process.pid, *(each.pid for each in process.children(recursive=True))]
            async with aiohttp.ClientSession(frontend.url, raise_for_status=True) as session:

                async def held() -> int:
                    url, headers = f"http://127.0.0.1:{port}/admin/store", key_file.headers("admin")
                    owners = (await (await session.get(url, headers=headers)).json())["owners"]
                    return sum(each["num_bytes"] for each in owners)

                of_few = await write(session, key_file.headers("few"), NUM_BYTES_OF_FEW)
                before = sum(map(max_memory_bytes, pids))
                share = NUM_BYTES // len(WRITERS)
                writing = asyncio.gather(*(write(session, key_file.headers(key), share) for key in WRITERS))
                largest = 0
                while not writing.done():
                    largest = max(largest, await held())
                    await asyncio.sleep(0.1)
                await writing
                for identity in of_few:
                    await session.get(f"{CONVERSATIONS}/{identity}", headers=key_file.headers("few"))
                last = await held()
            grown = sum(map(max_memory_bytes, pids)) - before
            there = num_bytes_there()
    assert 0.9 * BOUND < last <= largest <= (1 + SWEEP_SHARE) * BOUND
    assert grown < num_workers * OF_REQUESTS_BYTES + (BOUND * 9 / 8 if name == "memory" else 0)
    assert there <= LARGEST_SHARES[name] * BOUND
