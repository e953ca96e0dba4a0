from __future__ import annotations

from frontend.launcher.launcher import WINDOW_S, RestartPlan
from tests.frontend.triton.test_models import Clock


def test_the_pauses_grow_and_end_at_the_limit() -> None:
    plan = RestartPlan(3, Clock())
    assert [plan.next_pause_s() for _ in range(5)] == [1.0, 2.0, 4.0, None, None]


def test_what_was_long_ago_does_not_count() -> None:
    clock = Clock()
    plan = RestartPlan(1, clock)
    assert [plan.next_pause_s(), plan.next_pause_s()] == [1.0, None]
    clock.now += WINDOW_S
    assert plan.next_pause_s() == 1.0


def test_none_are_none() -> None:
    assert RestartPlan(0, Clock()).next_pause_s() is None
