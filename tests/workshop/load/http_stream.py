"""A connection for one streamed request at a time. It keeps bytes and times, and needs little CPU.

The load generator shares its cores with the measured server. Only HTTP is decoded here, by a parser in C; the events
are read after the measurement (`stream_record.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

from httptools import HttpParserError, HttpResponseParser


@dataclass(slots=True)
class Exchange:
    """A request and its answer. Times are of time.monotonic(), which all processes of a machine share."""

    sent_s: float
    status: int = 0  # 0: there was no answer
    pieces: list[tuple[float, bytes]] = field(default_factory=list)  # of the body, without HTTP's framing
    ended_s: float = 0.0
    error: str = ""  # of the connection or the protocol

    @property
    def has_failed(self) -> bool:
        return bool(self.error) or self.status != HTTPStatus.OK


class HttpStream(asyncio.Protocol):
    """A connection. `is_open` says whether it can take another request."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.is_open = False
        self._clock = clock
        self._now_s = 0.0
        self._parser = HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._ended: asyncio.Future[None] | None = None

    async def exchange(self, request: bytes) -> Exchange:
        """Send a request and wait for the end of its answer."""
        assert self._transport is not None and self._ended is None, "one request at a time"
        if not self.is_open:
            return Exchange(self._clock(), error="the connection was closed")
        self._ended = asyncio.get_running_loop().create_future()
        self._exchange = exchange = Exchange(self._clock())
        self._transport.write(request)
        try:
            await self._ended
        finally:
            self._ended = self._exchange = None
        return exchange

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not derive from it
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Feed the parser, which calls the `on_` methods below."""
        self._now_s = self._clock()
        try:
            self._parser.feed_data(data)
        except HttpParserError as exc:
            self._end(f"not HTTP: {exc}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the running request."""
        self.is_open = False
        self._now_s = self._clock()
        self._end(f"the connection was closed: {exc or 'by the server'}")

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        if self._exchange is not None:
            self._exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Called by the parser, for each part of a chunk."""
        if self._exchange is not None:
            self._exchange.pieces.append((self._now_s, body))

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self.is_open = self._parser.should_keep_alive()
        self._end("")

    def _end(self, error: str) -> None:
        if self._exchange is not None and self._ended is not None and not self._ended.done():
            self._exchange.error = error
            self._exchange.ended_s = self._now_s
            self._ended.set_result(None)


async def connect(host: str, port: int) -> HttpStream:
    """Return a new connection.

    Raises:
        OSError: it could not be made.
    """
    _, stream = await asyncio.get_running_loop().create_connection(HttpStream, host, port)
    return stream
