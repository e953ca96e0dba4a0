from __future__ import annotations

from frontend.triton.replica import CircuitBreaker
from tests.frontend.triton.test_models import Clock


def breaker_of(clock: Clock) -> CircuitBreaker:
    return CircuitBreaker(max_failures=3, pause_s=2.0, clock=clock)


def test_it_opens_after_failures_in_a_row() -> None:
    breaker = breaker_of(Clock())
    for step in (breaker.failed, breaker.failed, breaker.succeeded, breaker.failed, breaker.failed):
        step()
        assert breaker.is_closed
    breaker.failed()
    assert not breaker.is_closed


def test_one_probe_at_a_time_is_due_after_a_pause() -> None:
    clock = Clock()
    breaker = breaker_of(clock)
    assert not breaker.begin_trial()
    breaker.open()
    assert not breaker.begin_trial()
    clock.now += 2.0
    assert [breaker.begin_trial(), breaker.begin_trial()] == [True, False]
    breaker.end_trial(is_well=False)
    assert not breaker.is_closed
    assert not breaker.begin_trial()
    clock.now += 2.0
    assert breaker.begin_trial()
    breaker.end_trial(is_well=True)
    assert breaker.is_closed


def test_what_still_succeeds_or_fails_while_it_is_open_changes_nothing() -> None:
    clock = Clock()
    breaker = breaker_of(clock)
    breaker.open()
    clock.now += 1.9
    breaker.succeeded()
    breaker.open()
    assert not breaker.is_closed
    clock.now += 0.1
    assert breaker.begin_trial()
