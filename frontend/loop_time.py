"""Timeouts for answers of Triton that do not count the time of a blocked event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from typing import Any

_NUM_TICKS = 20  # parts of a timeout; a blocked event loop uses at most one


async def wait(tasks: Collection[asyncio.Future[Any]], timeout_s: float) -> None:
    """Wait until tasks are done, or for `timeout_s` of the event loop's time."""
    for _ in range(_NUM_TICKS):
        _, pending = await asyncio.wait(tasks, timeout=timeout_s / _NUM_TICKS)
        if not pending:
            return


async def within[T](timeout_s: float, work: Awaitable[T]) -> T:
    """Return the result of `work`.

    Raises:
        TimeoutError: `work` took longer than `timeout_s` of the event loop's time, and was cancelled.
    """
    task = asyncio.ensure_future(work)
    # Otherwise asyncio logs an exception that was not retrieved.
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    try:
        await wait((task,), timeout_s)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        task.cancel()
