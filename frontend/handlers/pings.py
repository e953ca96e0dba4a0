"""Comments that keep a silent stream's connection alive, and tell its client that somebody is there."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Self

from aiohttp import web

PING = b": ping\n\n"


class Pings:
    """Writes a comment whenever nothing was written for an interval; the first one sends the headers before it.

    Used as an asynchronous context manager by the handler that writes the stream. A timer each, and a task only for
    the moment of a ping: a chunk costs nothing.

    Args:
        request: which is answered.
        response: the stream.
        interval_s: 0: there are no comments.
    """

    def __init__(self, request: web.Request, response: web.StreamResponse, interval_s: float) -> None:
        self._request = request
        self._response = response
        self._interval_s = interval_s
        self._timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.Task[None] | None = None
        self._num_written_bytes = 0  # at the last look

    async def __aenter__(self) -> Self:
        self._wait()
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._ping is not None:
            self._ping.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await self._ping

    async def settled(self) -> None:
        """Wait for a ping that is on its way."""
        if self._ping is not None:
            await self._ping

    async def prepare(self) -> None:
        """Send the headers unless they have gone."""
        await self.settled()
        if not self._response.prepared:
            await self._response.prepare(self._request)

    def _wait(self) -> None:
        if self._interval_s:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._look)

    def _look(self) -> None:
        num_written_bytes = self._request.writer.output_size
        is_silent = num_written_bytes == self._num_written_bytes
        is_stuck = self._request.protocol.writing_paused  # its reader has more to read than it wants
        if is_silent and not is_stuck and (self._ping is None or self._ping.done()):
            self._ping = asyncio.get_running_loop().create_task(self._write())
        self._num_written_bytes = num_written_bytes
        self._wait()

    async def _write(self) -> None:
        with suppress(ConnectionError):  # its handler is told by itself
            if not self._response.prepared:
                await self._response.prepare(self._request)
            await self._response.write(PING)
