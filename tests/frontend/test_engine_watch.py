from __future__ import annotations

import pytest

from frontend.engine_watch import RELOAD_PAUSE_S, EngineHealth, EngineWatch, ReloadPlan, Verdict
from frontend.errors import APIError, EngineFailed, ModelNotReady, StageUnhealthy, TritonTimeout, TritonUnreachable
from frontend.models import MAX_AGE_S, ModelDirectory, ModelSnapshot
from frontend.settings import Settings
from tests.fakes import DEMO, FakeTriton
from tests.frontend.test_models import Clock

ENGINE = "org--demo__engine"
TOKENIZER = "org--demo__tokenizer"


def test_an_engine_with_the_same_epoch_is_fine() -> None:
    health = EngineHealth()
    assert [health.answered(7), health.answered(7)] == [Verdict.FINE, Verdict.FINE]


def test_another_epoch_is_a_restart_once() -> None:
    health = EngineHealth()
    assert [health.answered(epoch) for epoch in (7, 8, 8)] == [Verdict.FINE, Verdict.RESTARTED, Verdict.FINE]


@pytest.mark.parametrize("error", [TritonTimeout(), EngineFailed()])
def test_two_misses_in_a_row_lose_the_engine(error: APIError) -> None:
    health = EngineHealth()
    assert [health.failed(error), health.failed(error)] == [Verdict.FINE, Verdict.LOST]


def test_an_answer_between_two_misses_forgives_the_first() -> None:
    health = EngineHealth()
    health.failed(TritonTimeout())
    health.answered(7)
    assert health.failed(TritonTimeout()) is Verdict.FINE


def test_a_dead_process_loses_the_engine_at_once() -> None:
    assert EngineHealth().failed(StageUnhealthy(ENGINE)) is Verdict.LOST


def test_a_triton_that_is_away_is_no_reason_to_reload() -> None:
    health = EngineHealth()
    health.answered(7)
    assert [health.failed(TritonUnreachable()) for _ in range(3)] == [Verdict.FINE] * 3
    assert health.answered(8) is Verdict.FINE  # its streams broke with the connection


def test_an_engine_that_somebody_else_unloads_is_gone_at_once_and_the_next_one_is_another() -> None:
    """Its streams were ended when the next one was there, and with them the next one's."""
    health = EngineHealth()
    health.answered(7)
    gone = [health.failed(ModelNotReady("x")) for _ in range(3)]
    assert gone == [Verdict.RESTARTED, Verdict.FINE, Verdict.FINE]
    assert health.answered(8) is Verdict.FINE


def test_a_reload_is_not_tried_again_before_a_pause() -> None:
    clock = Clock()
    plan = ReloadPlan(clock)
    plan.want(ENGINE)
    assert plan.take_due() == [ENGINE]
    clock.now += RELOAD_PAUSE_S - 0.1
    assert plan.take_due() == []
    clock.now += 0.1
    assert plan.take_due() == [ENGINE]


@pytest.mark.parametrize(("duration_s", "pause_s"), [(1.0, RELOAD_PAUSE_S), (240.0, 240.0)])
def test_the_pause_begins_with_the_end_of_a_reload_and_is_at_least_as_long(duration_s: float, pause_s: float) -> None:
    clock = Clock()
    plan = ReloadPlan(clock)
    plan.want(ENGINE)
    assert plan.take_due() == [ENGINE]
    clock.now += duration_s
    plan.tried(ENGINE)
    clock.now += pause_s - 0.1
    assert plan.take_due() == []
    clock.now += 0.2
    assert plan.take_due() == [ENGINE]


def test_a_settled_stage_is_not_reloaded() -> None:
    plan = ReloadPlan(Clock())
    plan.want(ENGINE)
    plan.settle(ENGINE)
    assert plan.take_due() == []
    assert plan.slugs() == set()


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


def watch_of(triton: FakeTriton, clock: Clock) -> EngineWatch:
    return EngineWatch(triton, ModelDirectory(triton, clock), Settings(), clock)


async def settled(watch: EngineWatch) -> None:
    """Run one round to its end."""
    await watch.look()
    for task in list(watch._tasks.values()):
        await task


async def test_a_dead_engine_loses_its_streams_and_is_reloaded() -> None:
    triton, clock = FakeTriton(), Clock()
    watch = watch_of(triton, clock)
    triton.stats_error = StageUnhealthy(ENGINE)
    await settled(watch)
    assert triton.calls == [f"abort {ENGINE}"]
    assert watch.recovering() == {DEMO.slug}
    await settled(watch)
    assert triton.calls[1:] == [f"unload {ENGINE}", f"abort {ENGINE}", f"load {ENGINE}"]
    assert watch.recovering() == set()


async def test_an_engine_that_hangs_in_a_step_is_lost_although_it_answers() -> None:
    triton, clock = FakeTriton(), Clock()
    watch = watch_of(triton, clock)
    triton.step_age_ms = Settings().engine_stall_s * 1000
    await settled(watch)
    assert triton.calls == []
    triton.step_age_ms += 1
    await settled(watch)
    await settled(watch)
    assert triton.calls == [f"abort {ENGINE}", f"unload {ENGINE}", f"abort {ENGINE}", f"load {ENGINE}"]


async def test_the_epoch_after_a_reload_is_no_restart() -> None:
    triton, clock = FakeTriton(), Clock()
    watch = watch_of(triton, clock)
    await settled(watch)
    triton.stats_error = StageUnhealthy(ENGINE)
    watch.stage_down(ENGINE, clock.now)
    await settled(watch)
    triton.calls.clear()
    triton.stats_error, triton.epoch = None, 2
    await settled(watch)
    assert triton.calls == []


async def test_an_engine_that_somebody_else_reloaded_is_not_reloaded_again() -> None:
    triton, clock = FakeTriton(), Clock()
    watch = watch_of(triton, clock)
    watch.stage_down(ENGINE, clock.now)
    await settled(watch)
    assert triton.calls == [f"abort {ENGINE}"]
    assert watch.recovering() == set()


async def test_a_restarted_engine_loses_its_streams_and_is_left_alone() -> None:
    triton, clock = FakeTriton(), Clock()
    watch = watch_of(triton, clock)
    await settled(watch)
    triton.epoch = 2
    await settled(watch)
    await settled(watch)
    assert triton.calls == [f"abort {ENGINE} but 2"]


async def test_a_dead_tokenizer_is_reloaded_once() -> None:
    triton, clock = FakeTriton(), Clock()
    watch = watch_of(triton, clock)
    triton.on_stage_down(TOKENIZER, clock.now)
    triton.on_stage_down(TOKENIZER, clock.now)
    await settled(watch)
    assert triton.calls == [f"abort {TOKENIZER}", f"unload {TOKENIZER}", f"abort {TOKENIZER}", f"load {TOKENIZER}"]


async def test_a_stage_that_does_not_load_is_tried_again_after_a_pause() -> None:
    triton, clock = FakeTriton(), Clock()
    watch = watch_of(triton, clock)
    triton.load_error = TritonUnreachable()
    watch.stage_down(TOKENIZER, clock.now)
    await settled(watch)
    await settled(watch)
    assert triton.calls[1:] == [f"unload {TOKENIZER}", f"abort {TOKENIZER}", f"load {TOKENIZER}"]
    assert watch.recovering() == {DEMO.slug}
    clock.now += RELOAD_PAUSE_S
    triton.load_error = None
    await settled(watch)
    assert triton.calls[4:] == [f"unload {TOKENIZER}", f"abort {TOKENIZER}", f"load {TOKENIZER}"]
    assert watch.recovering() == set()


async def test_where_model_control_is_not_permitted_requests_are_not_refused_for_ever() -> None:
    triton, clock = FakeTriton(), Clock()
    watch = watch_of(triton, clock)
    triton.unload_error = APIError("not allowed")
    watch.stage_down(TOKENIZER, clock.now)
    await settled(watch)
    assert triton.calls == [f"abort {TOKENIZER}", f"unload {TOKENIZER}"]
    assert watch.recovering() == set()


async def test_the_engine_of_a_restarted_triton_is_no_restarted_engine() -> None:
    # The streams of the new Triton were ended for the sake of the old one's epoch.
    triton, clock = FakeTriton(), Clock()
    watch = watch_of(triton, clock)
    await settled(watch)
    clock.now += MAX_AGE_S
    triton.snapshot_error = TritonUnreachable()
    await settled(watch)
    triton.snapshot_error, triton.epoch = None, 2
    await settled(watch)
    assert triton.calls == []


async def test_a_triton_that_is_away_does_not_stop_the_watch() -> None:
    triton, clock = FakeTriton(), Clock()
    triton.snapshot_error = triton.stats_error = TritonUnreachable()
    await settled(watch_of(triton, clock))
    assert triton.calls == []


async def test_an_engine_is_watched_on_while_its_model_takes_no_new_requests() -> None:
    """An unload lets what runs go on: the ensemble is away, its engine is not."""
    triton, clock = FakeTriton(), Clock()
    watch = watch_of(triton, clock)
    await settled(watch)
    clock.now += 2 * MAX_AGE_S
    triton.models = ModelSnapshot(unready={DEMO.id: "unavailable"})
    await settled(watch)
    assert triton.calls == []
    triton.stats_error = ModelNotReady("x")
    await settled(watch)
    await settled(watch)
    assert triton.calls == [f"abort {ENGINE}"]
    clock.now += 2 * MAX_AGE_S
    triton.stats_error, triton.epoch, triton.models = None, 2, FakeTriton().models
    await settled(watch)
    assert triton.calls == [f"abort {ENGINE}"]
