"""The arithmetic of token buckets, over generated cases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.gateway.rates import Bucket

LIMITS = st.integers(1, 10**6)
TIMES_S = st.lists(st.floats(0, 30), max_size=20)


@given(limit=LIMITS, amounts=st.lists(st.tuples(st.floats(0, 5), st.integers(1, 1000)), max_size=60))
def test_no_more_than_a_full_bucket_and_its_refill_is_ever_taken(limit: int, amounts: list[tuple[float, int]]) -> None:
    bucket, now_s, taken = Bucket.full(limit, 0.0), 0.0, 0
    for pause_s, amount in amounts:
        now_s += pause_s
        bucket.refill(limit, now_s)
        if bucket.level >= amount:
            bucket.add(-amount)
            taken += amount
        assert taken <= limit * (1 + now_s / 60) * (1 + 1e-9)


@given(limit=LIMITS, pauses_s=TIMES_S)
def test_the_refill_does_not_depend_on_how_often_one_looks(limit: int, pauses_s: list[float]) -> None:
    often, once = Bucket(limit, 0.0, 0.0), Bucket(limit, 0.0, 0.0)
    now_s = 0.0
    for pause_s in pauses_s:
        now_s += pause_s
        often.refill(limit, now_s)
    once.refill(limit, now_s)
    assert often.level == pytest.approx(once.level) == pytest.approx(min(limit, limit * now_s / 60))


@given(limit=LIMITS, debts=st.lists(st.integers(0, 10**7), min_size=1, max_size=5))
def test_no_debt_is_older_than_two_minutes(limit: int, debts: list[int]) -> None:
    bucket = Bucket.full(limit, 0.0)
    for debt in debts:
        bucket.add(-debt)
    bucket.refill(limit, 120.0)
    assert bucket.level == pytest.approx(limit)


@given(limit=LIMITS, level=st.floats(-1, 1), share=st.floats(0, 1))
def test_the_wait_that_is_promised_is_enough_and_no_more(limit: int, level: float, share: float) -> None:
    bucket, amount = Bucket(limit, level * limit, 0.0), share * limit
    wait_s = bucket.wait_s(amount)
    bucket.refill(limit, wait_s)
    assert bucket.level >= amount - 1e-6 * limit
    if wait_s:
        assert bucket.level == pytest.approx(amount, abs=1e-6 * limit)


@given(limit=LIMITS, level=st.floats(-1, 1), given_back=st.integers(0, 10**7))
def test_what_is_given_back_never_overfills(limit: int, level: float, given_back: int) -> None:
    bucket = Bucket(limit, level * limit, 0.0)
    bucket.add(given_back)
    assert bucket.level <= limit


def test_a_clock_that_goes_back_refills_nothing() -> None:
    bucket = Bucket(60, 0.0, 100.0)
    bucket.refill(60, 50.0)
    assert bucket.level == 0
    bucket.refill(60, 101.0)
    assert bucket.level == 1


def test_a_lower_limit_holds_at_once() -> None:
    bucket = Bucket.full(100, 0.0)
    bucket.refill(10, 0.0)
    assert (bucket.level, bucket.per_minute) == (10, 10)
