"""Rates and concurrency of keys, in memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.errors import RateLimited
from frontend.gateway.rates import MemoryRates
from frontend.gateway.types import AdmissionRequest, Resource
from tests.frontend.gateway.admission_requests import Clock, counted, scope


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rates(clock: Clock) -> MemoryRates:
    return MemoryRates(clock)


async def test_a_spent_rate_says_when_to_come_back_and_keeps_its_word(rates: MemoryRates, clock: Clock) -> None:
    request = counted(requests_per_minute=2)
    for _ in range(2):
        await rates.take("", request)
    with pytest.raises(RateLimited) as caught:
        await rates.take("", request)
    assert caught.value.code == "requests"
    assert caught.value.headers["retry-after-ms"] == "30000"
    assert caught.value.headers["x-ratelimit-remaining-requests"] == "0"
    clock.now_s += 30
    await rates.take("", request)


async def test_a_request_that_can_never_fit_is_not_told_to_come_back(rates: MemoryRates) -> None:
    with pytest.raises(RateLimited, match="it can never fit") as caught:
        await rates.take("", counted(num_tokens=101, tokens_per_minute=100))
    assert caught.value.headers["x-should-retry"] == "false"
    assert "Retry-After" not in caught.value.headers


async def test_tokens_are_charged_by_the_estimate_and_settled_by_the_count(rates: MemoryRates) -> None:
    request = counted(num_tokens=80, tokens_per_minute=100)
    [reading] = await rates.take("", request)
    assert (reading.resource, reading.remaining) == (Resource.TOKENS, 20)
    rates.settle("", request, 30)
    [reading] = await rates.take("", counted(num_tokens=70, tokens_per_minute=100))
    assert reading.remaining == 0


async def test_what_was_used_beyond_the_estimate_is_a_debt(rates: MemoryRates, clock: Clock) -> None:
    request = counted(num_tokens=10, tokens_per_minute=60)
    await rates.take("", request)
    rates.settle("", request, 70)
    with pytest.raises(RateLimited) as caught:
        await rates.take("", counted(num_tokens=1, tokens_per_minute=60))
    assert caught.value.headers["retry-after-ms"] == "11000"


async def test_only_so_many_requests_run_at_a_time(rates: MemoryRates) -> None:
    request = counted(max_concurrent=1)
    await rates.take("", request)
    with pytest.raises(RateLimited, match="1 requests at a time"):
        await rates.take("", request)
    rates.settle("", request, 0)
    await rates.take("", request)


async def test_what_one_scope_refuses_no_other_is_charged_for(rates: MemoryRates) -> None:
    wide, narrow = scope(requests_per_minute=5), scope(model="m", requests_per_minute=1)
    both = AdmissionRequest(key="k", scopes=(wide, narrow))
    await rates.take("", both)
    with pytest.raises(RateLimited, match="with the model m"):
        await rates.take("", both)
    [reading] = await rates.take("", AdmissionRequest(key="k", scopes=(wide,)))
    assert reading.remaining == 3


async def test_a_request_that_was_never_served_costs_nothing(rates: MemoryRates) -> None:
    request = counted(requests_per_minute=1, tokens_per_minute=10, max_concurrent=1)
    await rates.take("", request)
    rates.undo("", request)
    await rates.take("", request)


async def test_keys_do_not_share(rates: MemoryRates) -> None:
    await rates.take("", counted("a", requests_per_minute=1))
    await rates.take("", counted("b", requests_per_minute=1))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 60)), max_size=60))
async def test_never_are_more_at_a_time_than_allowed(steps: list[tuple[bool, int, int]]) -> None:
    rates, running = MemoryRates(Clock()), []
    for is_begun, estimate, used in steps:
        request = counted(num_tokens=estimate, max_concurrent=3, tokens_per_minute=500)
        if is_begun:
            try:
                await rates.take("", request)
            except RateLimited:
                continue
            running.append(request)
        elif running:
            rates.settle("", running.pop(), used)
        assert len(running) <= 3
