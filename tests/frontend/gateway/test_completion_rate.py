"""What the time of waiting is estimated from."""

from __future__ import annotations

import pytest

from frontend.gateway.admission import CompletionRate


def test_a_steady_rate_is_known_from_the_first_seconds_on() -> None:
    rate = CompletionRate()
    rate.advance(0.0, is_full=True)
    for number in range(1, 21):
        rate.advance(number * 0.1, is_full=True)
        rate.ended(1)
    assert rate.wait_s(10, 1) == pytest.approx(1.0, rel=0.2)


def test_time_in_which_nobody_waits_does_not_count() -> None:
    rate = CompletionRate()
    rate.advance(0.0, is_full=True)
    for number in range(1, 11):
        rate.advance(number * 0.1, is_full=True)
        rate.ended(1)
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
    rate.ended(1)
    known = rate.wait_s(1, 1)
    rate.advance(3.0, is_full=True)
    assert rate.wait_s(1, 1) > known


def test_a_burst_is_not_judged_by_the_moment_in_which_it_came() -> None:
    """As long as nothing had ended one was taken to end: the last of 200 at 16 places were refused after 0.1 s."""
    rate = CompletionRate()
    rate.advance(0.0, is_full=True)
    rate.advance(0.1, is_full=True)
    assert rate.wait_s(200, 16) == pytest.approx(200 * 0.1 / 16)
    rate.advance(20.0, is_full=True)
    rate.ended(1)
    assert rate.wait_s(200, 16) > 1000  # by now it is known to be slow
