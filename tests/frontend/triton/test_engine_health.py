from __future__ import annotations

import pytest

from frontend.errors import APIError, EngineFailed, TritonTimeout, TritonUnreachable
from frontend.triton.health_monitor import RELOAD_PAUSE_S, EngineHealth, ReloadPlan, Verdict
from tests.frontend.triton.test_models import Clock

ENGINE = "org--demo__engine"
TOKENIZER = "org--demo__tokenizer"


@pytest.mark.parametrize("error", [TritonTimeout(), EngineFailed()])
def test_two_misses_in_a_row_lose_the_engine(error: APIError) -> None:
    health = EngineHealth()
    assert [health.failed(error), health.failed(error)] == [Verdict.FINE, Verdict.LOST]


def test_an_answer_between_two_misses_forgives_the_first() -> None:
    health = EngineHealth()
    health.failed(TritonTimeout())
    health.answered(7)
    assert health.failed(TritonTimeout()) is Verdict.FINE


def test_a_triton_that_is_away_is_no_reason_to_reload() -> None:
    health = EngineHealth()
    health.answered(7)
    assert [health.failed(TritonUnreachable()) for _ in range(3)] == [Verdict.FINE] * 3
    assert health.answered(8) is Verdict.FINE  # its streams broke with the connection


@pytest.mark.parametrize(("duration_s", "pause_s"), [(1.0, RELOAD_PAUSE_S), (240.0, 240.0)])
def test_the_pause_begins_with_the_end_of_a_reload_and_is_at_least_as_long(duration_s: float, pause_s: float) -> None:
    clock = Clock()
    plan = ReloadPlan(clock)
    plan.want(ENGINE)
    assert plan.start_due() == [ENGINE]
    clock.now += duration_s
    plan.ended(ENGINE)
    clock.now += pause_s - 0.1
    assert plan.start_due() == []
    clock.now += 0.2
    assert plan.start_due() == [ENGINE]


def test_trouble_from_before_a_reload_is_no_news_after_it() -> None:
    # A dead detokenizer answered its queue with errors for seconds, which had the new one reloaded, too.
    clock = Clock()
    plan = ReloadPlan(clock)
    assert plan.is_news(TOKENIZER, since=clock.now)
    plan.want(TOKENIZER)
    assert not plan.is_news(TOKENIZER, since=clock.now)
    began = clock.now
    clock.now += 1
    plan.settle(TOKENIZER)
    assert not plan.is_news(TOKENIZER, since=began)
    assert plan.is_news(TOKENIZER, since=clock.now)
