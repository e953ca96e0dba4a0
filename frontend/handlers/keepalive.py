"""Keepalive comments in a silent stream: proxies keep the connection open, and the client knows the server is there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

from aiohttp import web

from frontend.triton.leases import Hold

COMMENT = b": keepalive\n\n"
_WAITING_INTERVAL_S = 2.0  # the longest while a request waits for its model


class Keepalive:
    """Writes a comment after each interval without other bytes. The first comment sends the headers before it.

    The handler of a stream uses it as an asynchronous context manager. It has one timer, so a chunk costs nothing.

    Args:
        request: the request of the stream.
        response: the stream.
        interval_s: 0: no comments.
        hold: of the request; while it waits, comments come more often and tell about its model. None: it never waits.
    """

    def __init__(
        self, request: web.Request, response: web.StreamResponse, interval_s: float, hold: Hold | None
    ) -> None:
        self._hold = hold
        self._request = request
        self._response = response
        self._interval_s = interval_s
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None
        self._num_written_bytes = 0  # when the timer last fired

    async def __aenter__(self) -> Self:
        self._set_timer()
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await self._comment

    @property
    def _is_waiting(self) -> bool:
        return self._hold is not None and not self._hold.is_ready

    async def settled(self) -> None:
        """Wait until no comment is being written."""
        if self._comment is not None:
            await self._comment

    async def prepare(self) -> None:
        """Send the headers unless a comment has sent them."""
        await self.settled()
        if not self._response.prepared:
            await self._response.prepare(self._request)

    async def add_headers(self, headers: Mapping[str, str]) -> None:
        """Add headers of the stream. If a comment has sent its headers before, they are comments, too."""
        await self.settled()
        if not self._response.prepared:
            self._response.headers.update(headers)
        elif headers:
            await self._response.write("".join(f": {name}: {headers[name]}\n\n" for name in headers).encode())

    def _set_timer(self) -> None:
        if self._interval_s:
            interval_s = min(self._interval_s, _WAITING_INTERVAL_S) if self._is_waiting else self._interval_s
            self._timer = asyncio.get_running_loop().call_later(interval_s, self._write_if_silent)

    def _write_if_silent(self) -> None:
        num_written_bytes = self._request.writer.output_size
        is_silent = num_written_bytes == self._num_written_bytes
        is_reader_behind = self._request.protocol.writing_paused
        if is_silent and not is_reader_behind and (self._comment is None or self._comment.done()):
            self._comment = asyncio.get_running_loop().create_task(self._write())
        self._num_written_bytes = num_written_bytes
        self._set_timer()

    async def _write(self) -> None:
        with suppress(ConnectionError):  # the handler notices a lost connection by itself
            if not self._response.prepared:
                await self._response.prepare(self._request)
            if self._hold is None or self._hold.is_ready:
                await self._response.write(COMMENT)
            else:
                await self._response.write(f": keepalive: the model is {self._hold.news}\n\n".encode())
