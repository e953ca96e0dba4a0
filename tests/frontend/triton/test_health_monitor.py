from __future__ import annotations

import asyncio

import pytest

from frontend.errors import APIError, ModelNotReady, StageUnhealthy, TritonTimeout, TritonUnreachable
from frontend.settings import Settings
from frontend.triton import health_monitor
from frontend.triton.health_monitor import HealthMonitor
from frontend.triton.models import MAX_AGE_S, ModelDirectory, ModelSnapshot
from frontend.triton.replica_state import RELOAD_PAUSE_S, TRIAL_PAUSE_S, State
from model_repository.contract.output import EngineStats
from tests.fakes import DEMO, FakeTriton, chunks, leases_without_arbiter, served_model
from tests.frontend.triton.test_models import Clock

ENGINE = "org--demo__engine"
TOKENIZER = "org--demo__tokenizer"
DETOKENIZER = "org--demo__detokenizer"


@pytest.fixture
def triton() -> FakeTriton:
    return FakeTriton()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def monitor(triton: FakeTriton, clock: Clock) -> HealthMonitor:
    return monitor_of(triton, clock)


def monitor_of(triton: FakeTriton, clock: Clock) -> HealthMonitor:
    return HealthMonitor("fake:1", triton, ModelDirectory(triton, clock), Settings(), leases_without_arbiter(), clock)


def find_down(monitor: HealthMonitor, stage: str, since: float) -> None:
    """Have a request, begun at `since`, find a stage dead."""
    monitor.request_failed(DEMO.ensemble, StageUnhealthy(stage), since)


async def settled(monitor: HealthMonitor) -> None:
    """Run one round to its end."""
    await monitor.poll_all()
    while running := [task for task in monitor._tasks.values() if not task.done()]:
        await asyncio.wait(running)


async def test_a_dead_engine_loses_its_streams_and_is_reloaded(triton: FakeTriton, monitor: HealthMonitor) -> None:
    triton.stats_error = StageUnhealthy(ENGINE)
    await settled(monitor)
    assert triton.calls == [f"abort {ENGINE}"]
    assert monitor.states[DEMO.ensemble].state is State.RECOVERING
    await settled(monitor)
    assert triton.calls[1:] == [f"unload {ENGINE}", f"abort {ENGINE}", f"load {ENGINE}"]
    assert monitor.states[DEMO.ensemble].state is State.FAILING


async def test_an_engine_that_hangs_in_a_step_is_lost_although_it_answers(
    triton: FakeTriton, monitor: HealthMonitor
) -> None:
    triton.step_age_ms = Settings().engine_stall_s * 1000
    await settled(monitor)
    assert triton.calls == []
    triton.step_age_ms += 1
    await settled(monitor)
    await settled(monitor)
    assert triton.calls == [f"abort {ENGINE}", f"unload {ENGINE}", f"abort {ENGINE}", f"load {ENGINE}"]


async def test_the_epoch_after_a_reload_is_no_restart(triton: FakeTriton, clock: Clock, monitor: HealthMonitor) -> None:
    await settled(monitor)
    triton.stats_error = StageUnhealthy(ENGINE)
    find_down(monitor, ENGINE, clock.now)
    await settled(monitor)
    triton.calls.clear()
    triton.stats_error, triton.epoch = None, 2
    await settled(monitor)
    assert triton.calls == []


@pytest.mark.parametrize("stage", [ENGINE, TOKENIZER, DETOKENIZER])
async def test_a_stage_that_another_frontend_reloaded_is_not_reloaded_again(
    triton: FakeTriton, clock: Clock, monitor: HealthMonitor, stage: str
) -> None:
    find_down(monitor, stage, clock.now)
    await settled(monitor)
    assert triton.calls == [f"abort {stage}"]
    assert monitor.states[DEMO.ensemble].state is State.FAILING


async def test_with_a_dead_detokenizer_the_streams_of_other_frontends_end_too(
    triton: FakeTriton, clock: Clock, monitor: HealthMonitor
) -> None:
    # They waited behind a hundred responses for a second each, while the new detokenizer had nothing to do.
    triton.stage_errors["detokenizer"] = StageUnhealthy(DETOKENIZER)
    find_down(monitor, DETOKENIZER, clock.now)
    await settled(monitor)
    unloaded = [f"unload {DETOKENIZER}", f"abort {DETOKENIZER}", f"fail streams of {DEMO.ensemble}"]
    assert triton.calls == [f"abort {DETOKENIZER}", *unloaded, f"load {DETOKENIZER}"]


@pytest.mark.parametrize("stage", [TOKENIZER, DETOKENIZER])
@pytest.mark.parametrize("error", [StageUnhealthy(""), TritonTimeout()])
async def test_a_text_stage_that_fails_its_check_loses_its_streams_and_is_reloaded(
    triton: FakeTriton, monitor: HealthMonitor, stage: str, error: APIError
) -> None:
    triton.stage_errors[stage.partition("__")[2]] = error
    await settled(monitor)
    assert triton.calls == [f"abort {stage}"]
    assert monitor.states[DEMO.ensemble].state is State.RECOVERING
    await settled(monitor)
    assert triton.calls[1] == f"unload {stage}"
    assert triton.calls[-1] == f"load {stage}"


@pytest.mark.parametrize("error", [ModelNotReady("x"), TritonUnreachable()])
async def test_a_text_stage_that_is_not_loaded_or_not_reached_is_not_down(
    triton: FakeTriton, monitor: HealthMonitor, error: APIError
) -> None:
    triton.stage_errors["tokenizer"] = error
    await settled(monitor)
    assert triton.calls == []


async def test_a_text_stage_that_hangs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_monitor, "TEXT_STAGE_TIMEOUT_S", 0.05)

    class Hanging(FakeTriton):
        async def check_detokenizer(self, ensemble: str) -> None:
            await asyncio.Event().wait()

    triton, clock = Hanging(), Clock()
    monitor = monitor_of(triton, clock)
    await settled(monitor)
    assert triton.calls == [f"abort {DETOKENIZER}"]


async def test_a_model_that_embeds_has_no_detokenizer_to_check(clock: Clock) -> None:
    triton = FakeTriton(models=[served_model(pooling="mean")])
    triton.stage_errors["detokenizer"] = StageUnhealthy(DETOKENIZER)
    monitor = monitor_of(triton, clock)
    for _ in range(2):  # the first round fetches the models
        await settled(monitor)
    assert triton.calls == []


@pytest.mark.parametrize("stage", [TOKENIZER, DETOKENIZER])
async def test_a_text_stage_that_is_only_busy_is_not_reloaded(
    triton: FakeTriton, monitor: HealthMonitor, stage: str
) -> None:
    """Its check waited behind 60 texts, and the reload failed the requests of everybody."""
    triton.stage_errors[stage.partition("__")[2]] = TritonTimeout()
    triton.busy.add(stage)
    await settled(monitor)
    assert triton.calls == []


async def test_a_replica_that_fails_has_one_trial_at_a_time(
    triton: FakeTriton, clock: Clock, monitor: HealthMonitor
) -> None:
    gate = asyncio.Event()
    triton.script = [gate, *chunks("x")]
    monitor.request_failed(DEMO.ensemble, TritonUnreachable(), clock.now)
    for _ in range(3):
        clock.now += TRIAL_PAUSE_S
        await monitor.poll_all()
        await triton.started.wait()
    assert len(triton.requests) == 1
    gate.set()
    await settled(monitor)
    assert monitor.states[DEMO.ensemble].state is State.READY


async def test_a_stage_that_a_trial_finds_dead_is_reloaded(
    triton: FakeTriton, clock: Clock, monitor: HealthMonitor
) -> None:
    triton.script = [StageUnhealthy(DETOKENIZER)]
    monitor.request_failed(DEMO.ensemble, TritonUnreachable(), clock.now)
    clock.now += TRIAL_PAUSE_S
    await settled(monitor)
    assert triton.calls == [f"abort {DETOKENIZER}"]


async def test_an_engine_is_reported_as_down_while_it_is_reloaded() -> None:
    """Triton calls it not ready then, as one that was unloaded on purpose."""
    triton, clock = FakeTriton(), Clock()
    seen: list[EngineStats | APIError] = []
    monitor = HealthMonitor(
        "fake:1",
        triton,
        ModelDirectory(triton, clock),
        Settings(),
        leases_without_arbiter(),
        clock,
        lambda model, what: seen.append(what),
    )
    triton.stats_error = StageUnhealthy(ENGINE)
    triton.load_error = TritonTimeout()
    await settled(monitor)
    triton.stats_error = ModelNotReady("x")
    await settled(monitor)
    assert [type(what) for what in seen] == [StageUnhealthy, StageUnhealthy]


async def test_a_restarted_engine_loses_its_streams_and_is_left_alone(
    triton: FakeTriton, monitor: HealthMonitor
) -> None:
    await settled(monitor)
    triton.epoch = 2
    await settled(monitor)
    await settled(monitor)
    assert triton.calls == [f"abort {ENGINE} but 2"]


async def test_streams_of_an_unloaded_engine_may_get_their_last_outputs_before_they_end(
    triton: FakeTriton, clock: Clock, monitor: HealthMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_monitor, "UNLOADED_SILENCE_S", 0.01)
    ended: list[tuple[str, float, str]] = []
    monkeypatch.setattr(
        triton, "end_silent", lambda name, silence_s, error: ended.append((name, silence_s, error.code))
    )
    await settled(monitor)
    ended.clear()
    triton.stats_error = ModelNotReady("x")
    await settled(monitor)
    assert ended == [(DEMO.ensemble, 0.01, "model_not_ready")]
    clock.now += 2 * MAX_AGE_S
    triton.stats_error, triton.epoch = None, 2
    await settled(monitor)
    assert triton.calls == []  # it is loaded again, and has not restarted


async def test_an_unexpected_exception_does_not_stop_the_watch(
    triton: FakeTriton, monitor: HealthMonitor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*arguments: object) -> EngineStats:
        raise LookupError

    with monkeypatch.context() as patch:
        patch.setattr(triton, "engine_stats", broken)
        await settled(monitor)
    assert "unexpected exception while monitoring" in caplog.text
    triton.stats_error = StageUnhealthy(ENGINE)
    await settled(monitor)
    assert triton.calls == [f"abort {ENGINE}"]


async def test_a_dead_tokenizer_is_reloaded_once() -> None:
    triton, clock = FakeTriton(), Clock()
    triton.stage_errors["tokenizer"] = StageUnhealthy(TOKENIZER)
    monitor = monitor_of(triton, clock)
    for _ in range(2):
        find_down(monitor, TOKENIZER, clock.now)
    await settled(monitor)
    assert triton.calls == [f"abort {TOKENIZER}", f"unload {TOKENIZER}", f"abort {TOKENIZER}", f"load {TOKENIZER}"]


async def test_a_stage_that_does_not_load_is_tried_again_after_a_pause(
    triton: FakeTriton, clock: Clock, monitor: HealthMonitor
) -> None:
    triton.load_error = TritonUnreachable()
    triton.stage_errors["tokenizer"] = StageUnhealthy(TOKENIZER)
    find_down(monitor, TOKENIZER, clock.now)
    await settled(monitor)
    await settled(monitor)
    assert triton.calls[1:] == [f"unload {TOKENIZER}", f"abort {TOKENIZER}", f"load {TOKENIZER}"]
    assert monitor.states[DEMO.ensemble].state is State.RECOVERING
    clock.now += RELOAD_PAUSE_S
    triton.load_error = None
    await settled(monitor)
    assert triton.calls[4:] == [f"unload {TOKENIZER}", f"abort {TOKENIZER}", f"load {TOKENIZER}"]
    assert monitor.states[DEMO.ensemble].state is State.FAILING


async def test_a_stage_whose_unload_comes_late_is_loaded_in_any_case(
    triton: FakeTriton, clock: Clock, monitor: HealthMonitor
) -> None:
    """Triton unloaded it after the load of another frontend, and it stayed unloaded for ever."""
    triton.unload_error = TritonTimeout()
    triton.stage_errors["tokenizer"] = StageUnhealthy(TOKENIZER)
    find_down(monitor, TOKENIZER, clock.now)
    await settled(monitor)
    assert triton.calls[1:] == [f"unload {TOKENIZER}", f"abort {TOKENIZER}", f"load {TOKENIZER}"]


async def test_a_stage_that_another_frontend_loads_is_not_unloaded_again(
    triton: FakeTriton, clock: Clock, monitor: HealthMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health_monitor, "LOADING_INTERVAL_S", 0.01)
    triton.loading = {TOKENIZER}
    triton.stage_errors["tokenizer"] = StageUnhealthy(TOKENIZER)
    find_down(monitor, TOKENIZER, clock.now)
    reloading = asyncio.create_task(settled(monitor))
    await asyncio.sleep(0.1)
    assert monitor.states[DEMO.ensemble].state is State.RECOVERING
    triton.stage_errors.clear()
    triton.loading.clear()
    await reloading
    assert triton.calls == [f"abort {TOKENIZER}"]
    assert monitor.states[DEMO.ensemble].state is State.FAILING


async def test_where_model_control_is_not_permitted_requests_are_not_refused_for_ever(
    triton: FakeTriton, clock: Clock, monitor: HealthMonitor
) -> None:
    triton.unload_error = APIError("not allowed")
    triton.stage_errors["tokenizer"] = StageUnhealthy(TOKENIZER)
    find_down(monitor, TOKENIZER, clock.now)
    await settled(monitor)
    assert triton.calls == [f"abort {TOKENIZER}", f"unload {TOKENIZER}"]
    assert monitor.states[DEMO.ensemble].state is State.FAILING


async def test_the_engine_of_a_restarted_triton_is_no_restarted_engine(
    triton: FakeTriton, clock: Clock, monitor: HealthMonitor
) -> None:
    # The streams of the new Triton were ended for the sake of the old one's epoch.
    await settled(monitor)
    clock.now += MAX_AGE_S
    triton.snapshot_error = TritonUnreachable()
    await settled(monitor)
    triton.snapshot_error, triton.epoch = None, 2
    await settled(monitor)
    assert triton.calls == []


async def test_a_triton_that_is_away_does_not_stop_the_watch() -> None:
    triton, clock = FakeTriton(), Clock()
    triton.snapshot_error = triton.stats_error = TritonUnreachable()
    await settled(monitor_of(triton, clock))
    assert triton.calls == []


async def test_an_engine_is_watched_on_while_its_model_takes_no_new_requests(
    triton: FakeTriton, clock: Clock, monitor: HealthMonitor
) -> None:
    """An unload lets what runs go on: the ensemble is away, its engine is not."""
    await settled(monitor)
    clock.now += 2 * MAX_AGE_S
    triton.models = ModelSnapshot(unready={DEMO.id: "unavailable"})
    await settled(monitor)
    assert triton.calls == []
    triton.epoch = 2
    await settled(monitor)
    assert triton.calls == [f"abort {ENGINE} but 2"]
