from __future__ import annotations

from frontend.launcher.hang_watch import HangClock
from tests.frontend.triton.test_models import Clock


def test_a_server_that_has_answered_hangs_after_the_limit() -> None:
    time = Clock()
    clock = HangClock(30.0, 120.0, 1, time)
    time.now += 29.0
    assert not clock.hangs(1, is_silent=True)
    time.now += 1.0
    assert clock.hangs(1, is_silent=True)


def test_an_answer_ends_the_silence() -> None:
    time = Clock()
    clock = HangClock(30.0, 120.0, 1, time)
    for _ in range(3):
        time.now += 20.0
        assert not clock.hangs(1, is_silent=True)
        time.now += 9.0
        assert not clock.hangs(1, is_silent=False)


def test_a_server_that_was_started_again_has_longer_until_it_answers() -> None:
    time = Clock()
    clock = HangClock(30.0, 120.0, 1, time)
    assert not clock.hangs(2, is_silent=True)
    time.now += 119.0
    assert not clock.hangs(2, is_silent=True)
    time.now += 1.0
    assert clock.hangs(2, is_silent=True)
