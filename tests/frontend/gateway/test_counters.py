"""Rates and concurrency of keys, counted in memory, and the headers about them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.errors import RateLimited
from frontend.gateway.admission import Bounds
from frontend.gateway.counters import MemoryCounters
from frontend.gateway.headers import duration, rate_headers
from frontend.gateway.limiter import LocalLimiter
from frontend.gateway.types import AdmissionRequest, Reading
from tests.frontend.gateway.admission_requests import Clock, counted, scope

LIMITS = st.integers(1, 2**31 - 1)
AMOUNTS = st.integers(0, 10**7)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limiter(clock: Clock) -> LocalLimiter:
    return limiter_of(clock)


def limiter_of(clock: Clock) -> LocalLimiter:
    bounds = Bounds(max_in_flight=0, max_in_flight_prompt_tokens=0, max_queue_wait_s=1.0)
    return LocalLimiter(MemoryCounters(clock), lambda model: bounds)


def tokens(num_tokens: int, limit: int) -> AdmissionRequest:
    return counted(num_tokens=num_tokens, tokens_per_minute=limit)


async def remaining(limiter: LocalLimiter, limit: int) -> int:
    """Return the tokens that the rate allows."""
    [reading] = (await limiter.acquire(tokens(0, limit))).readings
    return reading.remaining


@given(limit=LIMITS, used=st.floats(0, 2), share=st.floats(0.001, 1))
async def test_the_promised_wait_is_enough_and_not_too_long(limit: int, used: float, share: float) -> None:
    clock = Clock()
    limiter, amount = limiter_of(clock), max(1, int(share * limit))
    limiter.release(await limiter.acquire(tokens(0, limit)), int(used * limit))
    try:
        await limiter.acquire(tokens(amount, limit))
    except RateLimited as exc:
        wait_s = int(exc.headers["retry-after-ms"]) / 1000
        clock.now_s += wait_s - 0.002
        if wait_s > 0.002:
            with pytest.raises(RateLimited):
                await limiter.acquire(tokens(amount, limit))
        clock.now_s += 0.002
        await limiter.acquire(tokens(amount, limit))


@given(limit=LIMITS, amounts=st.lists(st.tuples(st.floats(0, 5), st.integers(1, 1000)), max_size=60))
async def test_a_rate_allows_one_minutes_worth_and_its_refill(limit: int, amounts: list[tuple[float, int]]) -> None:
    clock, allowed = Clock(), 0
    limiter = limiter_of(clock)
    for pause_s, amount in amounts:
        clock.now_s += pause_s
        try:
            await limiter.acquire(tokens(amount, limit))
        except RateLimited:
            continue
        allowed += amount
        assert allowed <= limit * (1 + (clock.now_s - 100) / 60) * (1 + 1e-6)


@given(limit=LIMITS, debts=st.lists(AMOUNTS, min_size=1, max_size=5))
async def test_a_debt_ends_after_an_hour_and_a_minute(limit: int, debts: list[int]) -> None:
    clock = Clock()
    limiter = limiter_of(clock)
    for lease in [await limiter.acquire(tokens(0, limit)) for _ in debts]:
        limiter.release(lease, debts.pop())
    clock.now_s += 61 * 60
    assert await remaining(limiter, limit) == limit


async def test_a_completion_of_many_minutes_tokens_is_paid_in_full() -> None:
    clock = Clock()
    limiter = limiter_of(clock)
    limiter.release(await limiter.acquire(tokens(10, 1000)), 10_000)
    clock.now_s += 9 * 60
    with pytest.raises(RateLimited):
        await limiter.acquire(tokens(1, 1000))
    clock.now_s += 60
    assert await remaining(limiter, 1000) == 1000


@given(limit=LIMITS, estimate=st.floats(0, 1))
async def test_a_settlement_gives_back_what_was_charged_and_no_more(limit: int, estimate: float) -> None:
    limiter = limiter_of(Clock())
    lease = await limiter.acquire(tokens(int(estimate * limit), limit))
    limiter.release(lease, 0)
    limiter.release(lease, 0)
    assert await remaining(limiter, limit) == limit


async def test_a_clock_that_goes_back_refills_nothing_and_blocks_a_key_for_a_minute_at_most(
    limiter: LocalLimiter, clock: Clock
) -> None:
    await limiter.acquire(tokens(60, 60))
    clock.now_s -= 50
    with pytest.raises(RateLimited) as caught:
        await limiter.acquire(tokens(1, 60))
    assert int(caught.value.headers["retry-after-ms"]) <= 61_000


async def test_each_completion_of_a_request_counts_in_the_concurrency(limiter: LocalLimiter) -> None:
    """A request with 128 completions counted as one."""
    lease = await limiter.acquire(counted(num_completions=2, max_concurrent=3))
    with pytest.raises(RateLimited, match="the limit of 3 completions at a time"):
        await limiter.acquire(counted(num_completions=2, max_concurrent=3))
    limiter.release(lease, 0)
    with pytest.raises(RateLimited, match="counts as 4 completions, and 3 are allowed") as caught:
        await limiter.acquire(counted(num_completions=4, max_concurrent=3))
    assert caught.value.headers["x-should-retry"] == "false"
    await limiter.acquire(counted(num_completions=3, max_concurrent=3))


async def test_a_refusal_by_one_scope_charges_no_other_scope(limiter: LocalLimiter) -> None:
    wide, narrow = scope(tokens_per_minute=100), scope(model="m", requests_per_minute=1)
    both = AdmissionRequest(sender="k", scopes=(wide, narrow), num_charged_tokens=10)
    await limiter.acquire(both)
    with pytest.raises(RateLimited, match="with the model m"):
        await limiter.acquire(both)
    assert await remaining(limiter, 100) == 90


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0171, "18ms"),
        (0.9999, "1s"),
        (1, "1s"),
        (8.64, "8.64s"),
        (59.9999, "1m0s"),
        (60, "1m0s"),
        (61.5, "1m1.5s"),
        (360, "6m0s"),
    ],
)
def test_a_duration_is_in_openais_format(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_headers_show_the_tightest_of_several_limits() -> None:
    readings = (Reading("requests", 100, 30.0), Reading("requests", 10, 36.0), Reading("requests", 1000, 1.0))
    assert rate_headers(readings) == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "4",
        "x-ratelimit-reset-requests": "36s",
    }
