"""A busy frontend does not take a slow answer for a lost engine."""

from __future__ import annotations

import asyncio
import time

import pytest

from frontend import loop_time
from tests.waiting import DEADLINE_S

TIMEOUT_S = 0.5


async def stand_still(timeout_s: float = TIMEOUT_S) -> None:
    """Keep the event loop busy for longer than a timeout, once everybody has begun to wait."""
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(time.sleep, 1.2 * timeout_s)
    await asyncio.sleep(0)


async def test_time_in_which_the_event_loop_stood_still_hardly_counts() -> None:
    async def work() -> str:
        for _ in range(3):
            await stand_still()
        return "done"

    assert await loop_time.within(TIMEOUT_S, work()) == "done"


async def test_work_without_an_answer_is_cancelled() -> None:
    is_cancelled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()

    with pytest.raises(TimeoutError):
        await loop_time.within(0.01, work())
    await asyncio.wait_for(is_cancelled.wait(), DEADLINE_S)


async def test_a_cancelled_caller_cancels_the_work() -> None:
    work = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(loop_time.within(60, work))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait((waiting,))
    assert work.cancelled()
