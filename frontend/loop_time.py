"""Timeouts for answers of Triton. They count only time in which this process could have seen an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from typing import Any

_NUM_TICKS = 20  # of a timeout; a blocked event loop uses up at most one of them


async def wait(tasks: Collection[asyncio.Future[Any]], timeout_s: float) -> None:
    """Wait until tasks are done, or for `timeout_s` of the event loop's time."""
    for _ in range(_NUM_TICKS):
        _, pending = await asyncio.wait(tasks, timeout=timeout_s / _NUM_TICKS)
        if not pending:
            return


async def within[T](timeout_s: float, work: Awaitable[T]) -> T:
    """Return what is awaited.

    Raises:
        TimeoutError: it took longer than `timeout_s` of the event loop's time; it is cancelled then.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(
        lambda task: task.cancelled() or task.exception()
    )  # else asyncio logs an exception that nothing retrieves
    try:
        await wait((task,), timeout_s)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        task.cancel()
