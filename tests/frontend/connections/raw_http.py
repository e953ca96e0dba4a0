"""HTTP without a client: bytes out, whatever comes back in."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.waiting import DEADLINE_S


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """One answer of a connection."""

    status: int
    headers: Mapping[str, str]  # by name in lower case
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """The error in the envelope."""
        body = json.loads(self.body)
        assert set(body) == {"error", "detail"}
        error: dict[str, Any] = body["error"]
        return error


def port_of(http: aiohttp.ClientSession) -> int:
    """Return the port that a client talks to."""
    assert http._base_url is not None and http._base_url.port is not None
    return http._base_url.port


async def exchange(port: int, request: bytes) -> list[RawAnswer]:
    """Send bytes and return every answer until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    received = await asyncio.wait_for(reader.read(), DEADLINE_S)
    writer.close()
    return answers_in(received)


def post(path: str, body: Mapping[str, Any], *headers: str) -> bytes:
    """Return a request with a JSON body."""
    payload = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {len(payload)}", *headers, "", ""]).encode() + payload


def answers_in(received: bytes) -> list[RawAnswer]:
    """Split the bytes of a connection into answers without chunked encoding."""
    answers = []
    while received:
        head, separator, received = received.partition(b"\r\n\r\n")
        assert separator, head
        status_line, *lines = head.decode("latin-1").split("\r\n")
        version, status, _ = status_line.split(" ", 2)
        assert version in ("HTTP/1.1", "HTTP/1.0")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        size = int(headers["content-length"])
        answers.append(RawAnswer(int(status), headers, received[:size]))
        received = received[size:]
    return answers


def narrow_connection(port: int) -> socket.socket:
    """Connect with the smallest receive buffer, and read nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.connect(("127.0.0.1", port))
    return client
