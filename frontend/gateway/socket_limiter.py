"""A worker's side of the admission process's socket."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, cast

import orjson

from frontend.gateway.outage import Outage
from frontend.gateway.types import AdmissionRequest, Lease
from frontend.gateway.wire import error_from_wire, lease_from_wire, line

_CONNECT_S = 1.0
_MARGIN_S = 1.0  # beyond the longest wait in a queue; then the process hangs


class SocketLimiter:
    """Asks the admission process, once for each request; see Limiter.

    Args:
        path: of the Unix socket.
        max_queue_wait_s: the longest of any model.
        outage: what to do while it does not answer.
    """

    def __init__(self, path: str, max_queue_wait_s: float, outage: Outage) -> None:
        self._path = path
        self._answer_s = max_queue_wait_s + _MARGIN_S
        self._outage = outage
        self._numbers = itertools.count(1)
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def acquire(self, request: AdmissionRequest) -> Lease:
        """Wait until the request may go on; see Limiter."""
        uncounted = Lease("", request)
        if self._outage.is_pause:
            self._outage.pass_or_refuse()
            return uncounted
        number = next(self._numbers)
        connection: _Connection | None = None
        try:
            connection = await self._connected()
            async with asyncio.timeout(self._answer_s):
                answer = await connection.acquire(number, request)
        except (OSError, TimeoutError) as exc:  # TimeoutError is an OSError, but says so here
            if connection is not None:
                connection.cancel(number)
            self._outage.failed(exc)
            self._outage.pass_or_refuse()
            return uncounted
        except asyncio.CancelledError:
            if connection is not None:
                connection.cancel(number)
            raise
        self._outage.worked()
        if "error" in answer:
            raise error_from_wire(answer)
        return lease_from_wire(number, request, answer)

    def release(self, lease: Lease, num_tokens: int) -> None:
        """Give back what a request held; see Limiter. What a lost connection held was given back when it was lost."""
        if lease.id and self._connection is not None:
            self._connection.send({"do": "release", "number": int(lease.id), "num_tokens": num_tokens})

    async def close(self) -> None:
        """Disconnect."""
        if self._connection is not None:
            self._connection.close()

    async def _connected(self) -> _Connection:
        async with self._connecting:
            if self._connection is None or self._connection.is_lost:
                async with asyncio.timeout(_CONNECT_S):
                    _, self._connection = await asyncio.get_running_loop().create_unix_connection(
                        _Connection, self._path
                    )
            return self._connection


class _Connection(asyncio.Protocol):
    """Numbered questions, and the answers to them as they come."""

    def __init__(self) -> None:
        self.is_lost = False
        self._transport: asyncio.WriteTransport | None = None
        self._unread = b""
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        *lines, self._unread = (self._unread + data).split(b"\n")
        for each in lines:
            answer = orjson.loads(each)
            waiting = self._answers.pop(answer["number"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(ConnectionResetError("the admission process is gone"))
        self._answers.clear()

    async def acquire(self, number: int, request: AdmissionRequest) -> dict[str, Any]:
        waiting: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = waiting
        self.send({"do": "acquire", "number": number, "request": request})
        return await waiting

    def cancel(self, number: int) -> None:
        self._answers.pop(number, None)
        self.send({"do": "cancel", "number": number})

    def send(self, message: dict[str, Any]) -> None:
        if self._transport is not None and not self.is_lost:
            self._transport.write(line(message))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
