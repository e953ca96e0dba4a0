"""Admission to one model: bounds, order, refusals, cancelled requests, and the completion rate."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from frontend.errors import QueueFull
from frontend.gateway.admission import Admission, Bounds, CompletionRate
from frontend.gateway.policy import Policy
from frontend.gateway.types import AdmissionRequest
from frontend.settings import Settings
from tests.frontend.gateway.admission_requests import Clock, generation

BOUNDS: dict[str, Any] = {
    "max_in_flight": 2,
    "max_in_flight_prompt_tokens": 100,
    "max_queue_wait_s": 60.0,
}


def admission_of(**bounds: Any) -> Admission:
    return Admission(Bounds(**BOUNDS | bounds))


async def settled() -> None:
    """Run every task until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


async def waiting(admission: Admission, *requests: AdmissionRequest) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(admission.enter(each)) for each in requests]
    await settled()
    return tasks


async def test_requests_beyond_the_bound_wait_in_order() -> None:
    admission, request = admission_of(), generation()
    tasks = await waiting(admission, *[request] * 4)
    assert [task.done() for task in tasks] == [True, True, False, False]
    admission.leave(request)
    await settled()
    assert [task.done() for task in tasks] == [True, True, True, False]
    assert (admission.num_sequences, admission.num_queued) == (2, 1)
    admission.leave(request)
    await asyncio.gather(*tasks)


async def test_prompt_tokens_are_bounded_too() -> None:
    admission = admission_of(max_in_flight=9)
    tasks = await waiting(admission, generation(num_prompt_tokens=60), generation(num_prompt_tokens=60))
    assert [task.done() for task in tasks] == [True, False]
    admission.leave(generation(num_prompt_tokens=60))
    await tasks[1]


async def test_a_completion_larger_than_the_bounds_runs_alone() -> None:
    admission = admission_of()
    huge, small = generation(num_prompt_tokens=1000), generation()
    tasks = await waiting(admission, small, huge, small)
    assert [task.done() for task in tasks] == [True, False, False]  # the small request does not pass the huge one
    admission.leave(small)
    await settled()
    assert [task.done() for task in tasks] == [True, True, False]
    admission.leave(huge)
    await asyncio.gather(*tasks)


async def test_by_default_a_model_gets_as_many_completions_as_its_replicas_decode_at_a_time() -> None:
    admission = admission_of(max_in_flight=0)
    tasks = await waiting(admission, *[generation(num_replicas=2, max_sequences=3)] * 7)
    assert [task.done() for task in tasks] == [True] * 6 + [False]
    tasks[-1].cancel()


async def test_a_burst_that_few_places_serve_in_time_is_not_refused() -> None:
    """The queue had half as many places as the model: of 200 requests at once at 16 places, 176 were refused."""
    clock = Clock()
    admission = Admission(Policy(Settings()).bounds("m"), clock)
    burst = generation(max_sequences=16)
    tasks = []
    for _ in range(200):
        clock.now_s += 0.005
        tasks += await waiting(admission, burst)
    for _ in range(200 // 16):
        clock.now_s += 1.0
        for _ in range(16):
            admission.leave(burst)
        await settled()
    assert all(task.done() for task in tasks)
    await asyncio.gather(*tasks)


async def test_a_wide_request_neither_passes_others_nor_holds_them_up() -> None:
    """Its 128 completions ran before any other request: one request took the model from all keys."""
    admission = admission_of(max_in_flight=0)
    wide = [generation("wide", is_first=not number, max_sequences=8, num_tokens=2000) for number in range(128)]
    tasks = await waiting(admission, *wide)
    assert [task.done() for task in tasks].count(True) == 8  # alone it gets all places
    for _ in range(20):
        [other] = await waiting(admission, generation("other", max_sequences=8))
        if not other.done():
            admission.leave(wide[0])
        await settled()
        assert other.done()
        admission.leave(generation("other"))
        await settled()
        assert admission.num_sequences == 7  # one of the eight places stays free for the other sender
    for task in tasks:
        task.cancel()


async def test_the_last_place_is_kept_for_a_sender_that_has_none() -> None:
    clock = Clock()
    admission = Admission(Bounds(**BOUNDS | {"max_in_flight": 4, "max_queue_wait_s": 1000.0}), clock)
    await waiting(admission, *[generation("a")] * 2, generation("b"))
    blocked, third = await waiting(admission, generation("a"), generation("c"))
    assert (blocked.done(), third.done()) == (False, True)
    admission.leave(generation("c"))
    await settled()
    assert not blocked.done()
    clock.now_s += 100  # the others have not asked for long
    [alone] = await waiting(admission, generation("a"))
    assert (blocked.done(), alone.done()) == (True, False)
    alone.cancel()


async def test_the_last_prompt_tokens_are_kept_for_a_sender_that_has_no_place() -> None:
    """Long prompts filled the bound on prompt tokens, and every other sender waited for the end of one of them."""
    admission = admission_of(max_in_flight=16, max_in_flight_prompt_tokens=160)
    await waiting(admission, generation("a"), generation("b"))
    admission.leave(generation("b"))
    long_ones = await waiting(admission, *[generation("a", num_prompt_tokens=50)] * 4)
    assert [task.done() for task in long_ones] == [True, True, True, False]
    small, other = await waiting(admission, generation("a", num_prompt_tokens=1), generation("b"))
    assert (small.done(), other.done()) == (False, True)
    for task in (*long_ones, small):
        task.cancel()


async def test_only_the_first_completion_of_a_request_may_be_refused_or_wait_too_long() -> None:
    admission = admission_of(max_in_flight=1, max_queue_wait_s=0.001)
    await admission.enter(generation())
    [other] = await waiting(admission, generation(is_first=False))
    with pytest.raises(QueueFull):
        await admission.enter(generation())
    assert not other.done()
    admission.leave(generation())
    await other


async def test_a_full_queue_refuses_at_once_with_a_time_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("frontend.gateway.admission._MAX_QUEUED", 3)
    admission = admission_of()
    tasks = await waiting(admission, *[generation()] * 5)
    with pytest.raises(QueueFull) as caught:
        await admission.enter(generation())
    assert (caught.value.status, caught.value.type) == (503, "overloaded_error")
    assert int(caught.value.headers["Retry-After"]) >= 1
    assert admission.num_queued == 3
    for task in tasks:
        task.cancel()


async def test_a_queue_that_one_key_fills_has_room_for_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.gateway.admission._MAX_QUEUED", 3)
    admission = admission_of()
    tasks = await waiting(admission, *[generation("flood")] * 5)
    [other] = await waiting(admission, generation("other"))
    with pytest.raises(QueueFull):
        await admission.enter(generation("flood"))
    admission.leave(generation("flood"))
    admission.leave(generation("flood"))
    await other
    for task in tasks:
        task.cancel()


async def test_each_ready_replica_adds_places_and_a_lost_one_ends_no_request() -> None:
    admission, request = admission_of(), generation(num_replicas=2)
    tasks = await waiting(admission, *[request] * 5)
    assert [task.done() for task in tasks] == [True, True, True, True, False]
    [late] = await waiting(admission, generation(num_replicas=1))
    for _ in range(3):
        admission.leave(request)
    await settled()
    assert (tasks[-1].done(), late.done(), admission.num_sequences) == (True, False, 2)
    admission.leave(request)
    await late
    [waiter, comer] = await waiting(admission, generation(), generation(num_replicas=2))
    assert waiter.done() and comer.done()


async def test_no_request_waits_longer_than_the_maximum() -> None:
    bounds = Bounds(**BOUNDS | {"max_in_flight": 1, "max_queue_wait_s": 0.001})
    admission = Admission(bounds, Clock())  # with a real clock, the expected wait may be too long
    await admission.enter(generation())
    with pytest.raises(QueueFull, match=r"0\.001 s"):
        await admission.enter(generation())
    assert admission.num_queued == 0


async def test_a_request_with_a_long_expected_wait_is_refused_at_once() -> None:
    clock = Clock()
    admission = Admission(Bounds(**BOUNDS | {"max_in_flight": 1, "max_queue_wait_s": 10.0}), clock)
    first, second = await waiting(admission, generation(), generation())
    await first
    clock.now_s += 4
    admission.leave(generation())
    await second  # the rate is one completion in four seconds
    [third] = await waiting(admission, generation())
    with pytest.raises(QueueFull, match=r"about 8\.0 s") as caught:
        await admission.enter(generation())
    assert caught.value.headers["Retry-After"] == "8"
    third.cancel()


async def test_the_expected_wait_follows_the_model_also_with_an_empty_queue() -> None:
    """The rate was updated only while requests waited, and after a slow time every request was refused."""
    clock = Clock()
    admission = Admission(Bounds(**BOUNDS | {"max_in_flight": 1, "max_queue_wait_s": 10.0}), clock)
    await admission.enter(generation())
    clock.now_s += 6  # no completion has ended
    with pytest.raises(QueueFull, match=r"about 6\.0 s"):
        await admission.enter(generation())
    admission.leave(generation())
    for _ in range(50):
        await admission.enter(generation())
        clock.now_s += 0.5
        admission.leave(generation())
    [running, waiter] = await waiting(admission, generation(), generation())
    assert running.done() and admission.num_queued == 1
    waiter.cancel()


async def test_a_cancelled_request_leaves_the_queue_and_admits_the_next() -> None:
    admission = admission_of()
    large = generation(num_prompt_tokens=99)
    running, blocked, small = await waiting(admission, generation(), large, generation("other", num_tokens=11))
    assert running.done() and not small.done()
    blocked.cancel()
    await settled()
    assert blocked.cancelled() and small.done()
    assert (admission.num_queued, admission.num_sequences) == (0, 2)


async def test_a_request_that_is_cancelled_when_it_is_admitted_holds_nothing() -> None:
    admission = admission_of(max_in_flight=1)
    running, next_one = await waiting(admission, generation(), generation())
    admission.leave(generation())  # the next request is admitted, but its task has not run
    next_one.cancel()
    await settled()
    assert next_one.cancelled() and running.done()
    assert (admission.num_sequences, admission.num_prompt_tokens) == (0, 0)


def test_a_steady_rate_is_known_from_the_first_seconds_on() -> None:
    rate = CompletionRate()
    rate.advance(0.0, is_full=True)
    for number in range(1, 21):
        rate.advance(number * 0.1, is_full=True)
        rate.end()
    assert rate.wait_s(10, 1) == pytest.approx(1.0, rel=0.2)


def test_time_in_which_the_model_is_not_full_does_not_count() -> None:
    rate = CompletionRate()
    rate.advance(0.0, is_full=True)
    for number in range(1, 11):
        rate.advance(number * 0.1, is_full=True)
        rate.end()
    before = rate.wait_s(10, 1)
    rate.advance(1.0, is_full=False)
    rate.advance(1000.0, is_full=True)
    assert rate.wait_s(10, 1) == before


def test_while_nothing_ends_the_wait_grows() -> None:
    rate = CompletionRate()
    rate.advance(0.0, is_full=True)
    assert rate.wait_s(1, 1) == 0.0
    rate.advance(1.0, is_full=True)
    assert rate.wait_s(1, 1) == 1.0
    rate.end()
    known = rate.wait_s(1, 1)
    rate.advance(3.0, is_full=True)
    assert rate.wait_s(1, 1) > known


def test_a_burst_is_not_judged_before_a_completion_could_end() -> None:
    """Without a completion one was assumed to end: of 200 requests at 16 places the last were refused after 0.1 s."""
    rate = CompletionRate()
    rate.advance(0.0, is_full=True)
    rate.advance(0.1, is_full=True)
    assert rate.wait_s(200, 16) == pytest.approx(200 * 0.1 / 16)
    rate.advance(20.0, is_full=True)
    rate.end()
    assert rate.wait_s(200, 16) > 1000  # after 20 s the low rate is certain
