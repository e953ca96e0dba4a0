"""The end of a server's life: no new requests, the ones under way finish, or are ended when their time is up."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from frontend.errors import Draining

logger = logging.getLogger(__name__)

# What still answers: whoever asks for the health must hear that it is over, and see how it goes.
_ALWAYS_ANSWERED = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})
_LAST_WORDS_S = 2.0  # for the error events of those that were ended


class Drain:
    """Whether new requests are taken, and how many are under way.

    Args:
        tell_others: told at the beginning, for the other processes on the port.
    """

    def __init__(self, tell_others: Callable[[], None] = lambda: None) -> None:
        self._tell_others = tell_others
        self._num_requests = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.is_draining = False

    def begin(self) -> None:
        """Take no more requests. It cannot be undone; a second time it does nothing."""
        if not self.is_draining:
            self.is_draining = True
            logger.warning("draining: %d requests are under way, no more are taken", self._num_requests)
            self._tell_others()

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Count a request while it is under way.

        Raises:
            Draining: it comes too late.
        """
        if self.is_draining:
            raise Draining()
        self._num_requests += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._num_requests -= 1
            if not self._num_requests:
                self._is_idle.set()

    async def finish(self, timeout_s: float, hurry: asyncio.Event, end_all: Callable[[Draining], int]) -> None:
        """Begin if that has not been done, and return when no request is under way, at the latest soon after the limit.

        Args:
            timeout_s: after it what is under way is ended.
            hurry: set to end it at once.
            end_all: ends every generation with an error, and returns how many there were.
        """
        self.begin()
        await _first_of(self._is_idle, hurry, timeout_s=timeout_s)
        if self._is_idle.is_set():
            return
        num_ended = end_all(Draining("The server stopped before this request was finished."))
        logger.warning("the time for draining is over: ended %d generations", num_ended)
        await _first_of(self._is_idle, timeout_s=_LAST_WORDS_S)


def middleware(drain: Drain) -> Middleware:
    """Return the middleware that counts requests, and refuses those that come too late."""

    @web.middleware
    async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in _ALWAYS_ANSWERED:
            return await handler(request)
        with drain.request():
            response = await handler(request)
        if drain.is_draining:
            response.force_close()  # also where its headers left before: the next request must find another server
        return response

    return count


async def _first_of(*events: asyncio.Event, timeout_s: float) -> None:
    """Wait until one of the events is set, or the time is up."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
