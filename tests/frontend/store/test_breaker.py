"""Tests of the calls of a place that hangs."""

from __future__ import annotations

import asyncio

import pytest

from frontend.store.breaker import PAUSE_S, Breaker
from frontend.store.types import NoAnswer, StoreUnavailable


class HangingPlace:
    """A place that answers as a test says, behind a breaker."""

    def __init__(self) -> None:
        self.now_s, self.num_calls = 0.0, 0
        self.error: Exception | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.noted: list[bool] = []
        self._breaker = Breaker(self.noted.append, lambda: self.now_s)

    async def call(self) -> str:
        return await self._breaker.call(self._call)

    async def _call(self) -> str:
        self.num_calls += 1
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return "answer"


async def test_calls_after_one_without_an_answer_fail_at_once_for_some_time() -> None:
    place = HangingPlace()
    assert await place.call() == "answer"
    place.error = NoAnswer("no answer")
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await place.call()
    assert (place.num_calls, place.noted) == (2, [True, False, False, False])
    place.now_s, place.error = place.now_s + PAUSE_S, None
    for _ in range(2):
        assert await place.call() == "answer"
    assert place.num_calls == 4


async def test_one_call_tries_whether_the_place_is_back() -> None:
    place = HangingPlace()
    place.error = NoAnswer("no answer")
    with pytest.raises(NoAnswer):
        await place.call()
    place.now_s, place.error = place.now_s + PAUSE_S, None
    for is_cancelled in (True, False):
        place.may_answer.clear()
        trial = asyncio.create_task(place.call())
        await asyncio.sleep(0)
        with pytest.raises(StoreUnavailable, match="a moment ago"):
            await place.call()
        if is_cancelled:
            trial.cancel()
            await asyncio.gather(trial, return_exceptions=True)
    place.may_answer.set()
    assert await trial == "answer" == await place.call()


async def test_a_call_that_was_slow_alone_delays_nobody() -> None:
    place = HangingPlace()
    place.now_s = 1.0
    place.may_answer.clear()
    slow = asyncio.create_task(place.call())
    await asyncio.sleep(0)
    place.may_answer.set()
    place.now_s = 2.0
    assert await place.call() == "answer"
    place.error = NoAnswer("no answer")
    with pytest.raises(NoAnswer):
        await slow
    place.error = None
    assert await place.call() == "answer"


async def test_an_error_that_came_at_once_delays_nobody() -> None:
    place = HangingPlace()
    place.error = StoreUnavailable("the disk is full")
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="full"):
            await place.call()
    assert place.num_calls == 3
