"""The drain of a server before it stops: it refuses new requests, and those in flight finish in a limited time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from frontend.errors import Draining

logger = logging.getLogger(__name__)

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/metrics"})  # served during a drain
_ERROR_EVENTS_S = 2.0  # time to send the error events of ended requests


class Drain:
    """The requests in flight, and whether the server takes new ones.

    Args:
        tell_others: called at the beginning of the drain, for the other processes on the port.
    """

    def __init__(self, tell_others: Callable[[], None] = lambda: None) -> None:
        self._tell_others = tell_others
        self._num_requests = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self.is_draining = False

    def begin(self) -> None:
        """Refuse new requests from now on. A second call does nothing."""
        if not self.is_draining:
            self.is_draining = True
            level = logging.WARNING if self._num_requests else logging.INFO
            logger.log(level, "draining: %d requests are in flight, new ones are refused", self._num_requests)
            self._tell_others()

    def __enter__(self) -> None:
        """Count a request until the end of the block.

        Raises:
            Draining: the drain has begun.
        """
        if self.is_draining:
            raise Draining()
        self._num_requests += 1
        self._is_idle.clear()

    def __exit__(self, *exception: object) -> None:
        self._num_requests -= 1
        if not self._num_requests:
            self._is_idle.set()

    async def finish(self, timeout_s: float, hurry: asyncio.Event, end_all: Callable[[Draining], int]) -> None:
        """Begin the drain if necessary, and return when no request is in flight, or soon after the timeout.

        Args:
            timeout_s: after this time requests in flight are ended.
            hurry: set it to end them at once.
            end_all: ends all generations with an error and returns their number.
        """
        self.begin()
        await _first_of(self._is_idle, hurry, timeout_s=timeout_s)
        if self._is_idle.is_set():
            return
        num_ended = end_all(Draining("The server stopped before this request was finished."))
        logger.warning("the time for draining is over: ended %d generations", num_ended)
        await _first_of(self._is_idle, timeout_s=_ERROR_EVENTS_S)


async def _first_of(*events: asyncio.Event, timeout_s: float) -> None:
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
