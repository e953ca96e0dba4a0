"""Too many connections: which ones are closed, and a flood of real ones."""

from __future__ import annotations

import asyncio
import http.client
import resource
import socket
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from frontend.connections.crowd import MAX_UNFINISHED, Crowd
from model_repository.contract.output import GenerationChunk
from tests.fakes import FakeTriton, chunks
from tests.frontend.bodies import COMPLETION
from tests.frontend.conftest import Serve
from tests.frontend.connections.raw_http import port_of, post
from tests.launching import free_port, running
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.usefixtures("servers")

FILE_LIMIT = 320
FLOOD, OTHER = "127.0.0.1", "127.0.0.2"
GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
SLOW = post("/v1/completions", COMPLETION)[:-1]


@dataclass(eq=False)
class FakeConnection:
    address: str
    waits_since_s: float
    is_waiting: bool = True
    is_idle: bool = False
    closed: list[float] = field(default_factory=list)

    def abort(self) -> None:
        self.closed.append(self.waits_since_s)


def added(
    crowd: Crowd, num: int, address: str, since_s: float = 0, *, is_waiting: bool = True, is_idle: bool = False
) -> list[FakeConnection]:
    """Add connections that wait for 0, 1, ... seconds less than the first one."""
    members = [FakeConnection(address, since_s + number, is_waiting, is_idle) for number in range(num)]
    for member in members:
        crowd.add(member)
    return members


def closed(members: list[FakeConnection]) -> list[float]:
    return [since_s for member in members for since_s in member.closed]


def test_the_address_with_most_waiting_connections_loses_the_oldest() -> None:
    crowd = Crowd(160)
    flood = added(crowd, 100, FLOOD)
    proxy = added(crowd, 60, OTHER)
    [newest] = added(crowd, 1, OTHER, since_s=1000)
    assert closed(flood) == list(range(10))
    assert closed([*proxy, newest]) == []


def test_idle_connections_of_an_address_are_closed_before_those_with_a_request() -> None:
    crowd = Crowd(32)
    unfinished = added(crowd, 16, FLOOD)
    idle = added(crowd, 17, FLOOD, since_s=100, is_idle=True)
    assert (closed(unfinished), closed(idle)) == ([], [100, 101])


def test_an_address_may_have_all_connections_and_its_running_requests_are_never_closed() -> None:
    crowd = Crowd(32)
    running = added(crowd, 24, OTHER, is_waiting=False)
    flood = added(crowd, 8, FLOOD, since_s=50)
    assert closed(running + flood) == []
    added(crowd, 1, FLOOD, since_s=100)
    assert (closed(running), closed(flood)) == ([], [50, 51])


def test_a_new_connection_is_closed_if_all_others_have_running_requests() -> None:
    crowd = Crowd(4)
    running = added(crowd, 4, OTHER, is_waiting=False)
    late = added(crowd, 2, FLOOD, since_s=100)
    assert (closed(running), closed(late)) == ([], [100, 101])


def test_closed_connections_make_room_at_once() -> None:
    crowd = Crowd(32)
    added(crowd, 33, FLOOD)
    assert closed(added(crowd, 1, OTHER)) == []


def test_unfinished_requests_have_a_bound_of_their_own() -> None:
    crowd = Crowd(10 * MAX_UNFINISHED)
    members = added(crowd, MAX_UNFINISHED + 1, FLOOD)
    for member in members[:-1]:
        crowd.begin_request(member)
    crowd.end_request(members[0])
    crowd.begin_request(members[0])
    assert closed(members) == []
    crowd.begin_request(members[-1])
    assert closed(members) == list(range(MAX_UNFINISHED // 16))


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILE_LIMIT // 2, FILE_LIMIT))


def test_a_flood_of_slow_bodies_of_one_address_leaves_room_for_another(tmp_path: Path) -> None:
    admin_port = free_port()
    words = ["api", "--port=0", f"--admin-port={admin_port}", "--workers=1"]
    with running(tmp_path, *words, preexec_fn=limit_files) as frontend, ExitStack() as stack:
        frontend.wait_for("has its operations on")
        port = int(frontend.url.rpartition(":")[2])
        for _ in range(2 * FILE_LIMIT):
            slow = stack.enter_context(socket.create_connection((FLOOD, port), source_address=(FLOOD, 0)))
            slow.sendall(SLOW)
        for each in [port] * (FILE_LIMIT // 8) + [admin_port]:  # each client keeps its connection
            client = http.client.HTTPConnection(FLOOD, each, timeout=DEADLINE_S, source_address=(OTHER, 0))
            stack.callback(client.close)
            client.request("GET", "/health/live")
            assert client.getresponse().status == 200
        assert f"more than {FILE_LIMIT // 2} connections: closed" in frontend.log


@pytest.mark.parametrize("begin", [SLOW, SLOW[:30], GET, b""], ids=["body", "head", "idle", "silent"])
async def test_a_connection_that_waits_for_its_client_is_closed_and_a_running_request_is_not(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    monkeypatch.setattr("frontend.server.max_connections", lambda: 2)
    last = asyncio.Event()
    port = port_of(await serve(FakeTriton([GenerationChunk(text="x"), last, *chunks("y")])))
    async with asyncio.timeout(DEADLINE_S):
        running, running_writer = await asyncio.open_connection(FLOOD, port)
        running_writer.write(post("/v1/completions", COMPLETION | {"stream": True}, "Connection: close"))
        assert b" 200 " in await running.readline()
        waiting, waiting_writer = await asyncio.open_connection(FLOOD, port)
        waiting_writer.write(begin)
        if begin == GET:
            assert b'"status"' in await waiting.readuntil(b"}")
        _, late_writer = await asyncio.open_connection(FLOOD, port)
        assert await is_gone(waiting)
        last.set()
        assert b"data: [DONE]" in await running.read()
        for writer in (running_writer, waiting_writer, late_writer):
            writer.close()


async def is_gone(reader: asyncio.StreamReader) -> bool:
    """Wait until the server has closed a connection."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True
