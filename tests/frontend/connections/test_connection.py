"""Connections over real sockets: slow ones, long ones, and malformed requests."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from typing import Any, cast

import pytest

from frontend.connections.connection import Connection
from model_repository.contract.output import GenerationChunk
from tests.fakes import FakeTriton, chunks
from tests.frontend.bodies import CHAT, COMPLETION
from tests.frontend.conftest import Serve
from tests.frontend.connections.raw_http import exchange, narrow_connection, port_of, post
from tests.waiting import DEADLINE_S

GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
CLOSE = b"Connection: close\r\n"


async def is_closed(reader: asyncio.StreamReader) -> bool:
    return await asyncio.wait_for(reader.read(), DEADLINE_S) == b""


async def test_a_head_that_dribbles_in_is_answered_with_408(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.connections.connection.HEADER_TIMEOUT_S", 0.05)
    http = await serve(FakeTriton())
    for head in (b"GET", GET, GET + b"X: y"):
        (answer,) = await exchange(port_of(http), head)
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert answer.headers["connection"] == "close"


async def test_the_head_of_a_later_request_has_the_same_deadline(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.connections.connection.HEADER_TIMEOUT_S", 0.05)
    http = await serve(FakeTriton())
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(http))
    writer.write(GET + b"\r\n")
    assert b"200 OK" in await reader.readline()
    await reader.readuntil(b"}")
    writer.write(b"GET /he")
    assert b" 408 " in await asyncio.wait_for(reader.readline(), DEADLINE_S)
    writer.close()


async def test_a_silent_connection_is_closed_without_an_answer(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.connections.connection.HEADER_TIMEOUT_S", 0.05)
    http = await serve(FakeTriton())
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(http))
    assert await is_closed(reader)
    writer.close()


async def test_an_idle_connection_is_closed_after_its_time(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline of a head, which is shorter here, is over with the head."""
    monkeypatch.setattr("frontend.connections.connection.HEADER_TIMEOUT_S", 0.2)
    http = await serve(FakeTriton(), idle_timeout_s=0.6)
    (answer,) = await exchange(port_of(http), GET + b"\r\n")
    assert answer.status == 200
    assert "connection" not in answer.headers


async def test_an_answer_names_the_time_that_its_connection_may_be_idle_unless_it_closes(serve: Serve) -> None:
    http = await serve(FakeTriton(), idle_timeout_s=90.9)
    for headers, announced in (({}, "timeout=90"), ({"Connection": "close"}, None)):
        async with http.get("/health/live", headers=headers) as answer:
            assert answer.headers.get("Keep-Alive") == announced


async def test_a_body_that_dribbles_in_is_answered_with_408(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.handlers.bodies.BODY_TIMEOUT_S", 0.05)
    monkeypatch.setattr("frontend.server.LINGERING_S", 0.3)
    triton = FakeTriton(chunks("x"))
    http = await serve(triton)
    (answer,) = await exchange(port_of(http), post("/v1/completions", COMPLETION)[:-1])
    assert (answer.status, answer.error["code"]) == (408, "request_timeout")
    assert not triton.requests


async def test_a_url_that_is_too_long_is_414(serve: Serve) -> None:
    http = await serve(FakeTriton())
    (answer,) = await exchange(port_of(http), b"GET /" + b"a" * 10_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (answer.status, answer.error["code"]) == (414, "url_too_long")
    assert "8192 bytes" in answer.error["message"]


@pytest.mark.parametrize(
    "headers",
    [b"X: " + b"a" * 2**20 + b"\r\n", b"a" * 2**20 + b": b\r\n", b"X: y\r\n" * 200, b"Cookie: " + b"a" * 20_000],
    ids=["a value of a megabyte", "a name of a megabyte", "two hundred", "no end"],
)
async def test_long_or_many_headers_are_431(serve: Serve, headers: bytes) -> None:
    http = await serve(FakeTriton())
    (answer,) = await exchange(port_of(http), GET + headers + b"\r\n")
    assert (answer.status, answer.error["code"]) == (431, "headers_too_large")
    assert answer.headers["x-request-id"].startswith("req_")


async def test_a_malformed_request_is_refused_without_an_echo(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    http = await serve(FakeTriton())
    for request in (
        b"secret\r\n\r\n",
        b"GET /secret HTTP/2.0\r\nHost: localhost\r\n\r\n",
        b"GET /secret HTTP/9.9\r\n\r\n",
        GET + b"secret\r\n\r\n",
        GET + b"Transfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
        b"\x16\x03\x01secret\n\n",
    ):
        (answer,) = await exchange(port_of(http), request)
        assert (answer.status, answer.error["code"]) == (400, "invalid_http")
        assert b"secret" not in answer.body
    assert "Traceback" not in caplog.text
    assert "secret" not in caplog.text


def endless(num_open: int = 10_000) -> list[GenerationChunk]:
    return [GenerationChunk(text="x" * 1000) for _ in range(num_open)]


async def test_the_kernel_checks_silent_peers_of_every_connection(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection inherits the options of its listener."""
    values: list[int] = []
    make = Connection.connection_made

    def connection_made(self: Connection, transport: asyncio.BaseTransport) -> None:
        sock = transport.get_extra_info("socket")
        values.append(sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
        values.extend(
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_NOTSENT_LOWAT, socket.TCP_USER_TIMEOUT)
        )
        make(self, transport)

    monkeypatch.setattr(Connection, "connection_made", connection_made)
    http = await serve(FakeTriton())
    await exchange(port_of(http), GET + CLOSE + b"\r\n")
    assert values == [1, 30, 64 * 1024, 60_000]


class Recorder:
    """A transport that keeps a copy of each write."""

    def __init__(self, transport: Any, writes: list[bytes]) -> None:
        self._transport, self._writes = transport, writes

    def write(self, data: bytes) -> None:
        self._writes.append(bytes(data))
        self._transport.write(data)

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def test_the_head_of_a_stream_leaves_with_the_first_events(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of aiohttp that `EventStream` sets is private."""
    writes: list[bytes] = []
    make = Connection.connection_made
    monkeypatch.setattr(Connection, "connection_made", lambda self, peer: make(self, cast(Any, Recorder(peer, writes))))
    http = await serve(FakeTriton(chunks("x")))
    async with http.post("/v1/chat/completions", json=CHAT | {"stream": True}) as answer:
        await answer.read()
    assert writes[0].startswith(b"HTTP/1.1 200 OK")
    assert b"data: " in writes[0]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reader_that_stalls_is_cut_and_its_generation_ends(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr("frontend.connections.connection.STALLED_READER_S", 0.1)
    triton = FakeTriton(endless() if stream else chunks("x" * 20_000_000))
    http = await serve(triton)
    with narrow_connection(port_of(http)) as client:
        client.sendall(post("/v1/chat/completions", CHAT | {"stream": stream}))
        await asyncio.wait_for(triton.closed.wait(), DEADLINE_S)
        assert len(asyncio.all_tasks()) < 10
        assert await asyncio.to_thread(is_reset, client)


async def test_a_reader_that_drips_is_cut(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte in 30 seconds kept a connection and its answer for ever."""
    monkeypatch.setattr("frontend.connections.connection.STALLED_READER_S", 0.2)
    monkeypatch.setattr("frontend.connections.connection.MIN_BYTES_PER_S", 50_000_000)
    triton = FakeTriton(endless())
    http = await serve(triton)
    with narrow_connection(port_of(http)) as client:
        client.sendall(post("/v1/chat/completions", CHAT | {"stream": True}))
        with contextlib.suppress(ConnectionResetError):
            while not triton.closed.is_set():
                await asyncio.to_thread(client.recv, 4096)
                await asyncio.sleep(0.01)
        await asyncio.wait_for(triton.closed.wait(), DEADLINE_S)


def is_reset(client: socket.socket) -> bool:
    """Wait until the server has reset the connection, without reading."""
    poll = select.poll()
    poll.register(client, 0)
    return any(events & select.POLLERR for _, events in poll.poll(DEADLINE_S * 1000))


async def test_a_slow_reader_that_goes_on_reading_gets_everything(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    stalled_s = 1.0
    monkeypatch.setattr("frontend.connections.connection.STALLED_READER_S", stalled_s)
    http = await serve(FakeTriton(chunks("x" * 3_000_000)))
    with narrow_connection(port_of(http)) as client:
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(client, post("/v1/chat/completions", CHAT, "Connection: close"))
        received, begun_s = 0, loop.time()
        while part := await loop.sock_recv(client, 2048):
            received += len(part)
            await asyncio.sleep(stalled_s / 700)
    assert received > 3_000_000
    assert loop.time() - begun_s > 1.5 * stalled_s
