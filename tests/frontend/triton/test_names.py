"""Endpoints that are names: a name server of our own answers what a test tells it, over UDP."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from frontend.errors import TritonUnreachable
from frontend.triton.client import TritonClient
from tests.frontend.triton.server import FakeTritonServer, listen
from tests.waiting import DEADLINE_S

_HEADER_BYTES = 12
_TYPE_A = 1


class NameServer(asyncio.DatagramProtocol):
    """Answers every question for an IPv4 address with the same addresses, which may be kept for no time at all."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what answers."""
        assert isinstance(transport, asyncio.DatagramTransport)
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Answer a question."""
        end = data.index(b"\0", _HEADER_BYTES) + 1 + 4  # of the name, its type and class
        (kind,) = struct.unpack("!H", data[end - 4 : end - 2])
        found = [socket.inet_aton(each) for each in self.addresses] if kind == _TYPE_A else []
        records = (b"\xc0\x0c" + struct.pack("!HHIH", _TYPE_A, 1, 0, len(each)) + each for each in found)
        header = data[:2] + struct.pack("!HHHHH", 0x8180, 1, len(found), 0, 0)
        self._transport.sendto(header + data[_HEADER_BYTES:end] + b"".join(records), addr)


@pytest.fixture
async def names() -> AsyncIterator[tuple[NameServer, int]]:
    """A name server and its port."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    yield protocol, transport.get_extra_info("sockname")[1]
    transport.close()


async def unready_at(client: TritonClient) -> set[str]:
    """Return the models that are not ready at the server that the name leads to now; wait until there is one."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                return set((await client.snapshot()).unready)
            except TritonUnreachable:
                continue


async def test_a_name_is_resolved_again_when_its_server_is_gone(names: tuple[NameServer, int]) -> None:
    name_server, dns_port = names
    first, second = FakeTritonServer(), FakeTritonServer()
    first.index, second.index = [("first", "LOADING")], [("second", "LOADING")]
    listeners = [await listen(first)]
    port = listeners[0][1]
    listeners.append(await listen(second, port, host="127.0.0.2"))
    name_server.addresses = ["127.0.0.1"]
    client = TritonClient(f"dns://127.0.0.1:{dns_port}/triton.test:{port}")
    assert await unready_at(client) == {"first"}
    name_server.addresses = ["127.0.0.2"]
    assert await unready_at(client) == {"first"}  # the connection stands
    await listeners[0][0].stop(None)
    assert await unready_at(client) == {"second"}
    await client.close()
    await listeners[1][0].stop(None)
