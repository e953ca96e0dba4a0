from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from frontend.errors import (
    APIError,
    Draining,
    EngineFailed,
    InvalidRequest,
    ModelNotReady,
    NotFound,
    QueueFull,
    RateLimited,
    ReaderTooSlow,
    StageUnhealthy,
    TritonTimeout,
    TritonUnreachable,
)
from frontend.triton.replica_state import (
    MAX_FAILURES,
    RELOAD_PAUSE_S,
    TRIAL_PAUSE_S,
    ReplicaState,
    State,
    Verdict,
)
from tests.fakes import stats
from tests.frontend.triton.test_models import Clock

ENSEMBLE = "org--demo"
ENGINE, TOKENIZER = f"{ENSEMBLE}__engine", f"{ENSEMBLE}__tokenizer"
IDLE, DRAINED = stats(7), replace(stats(7), is_draining=True)

type Event = Callable[[ReplicaState, float], object]  # arguments: the state, and the time


def repaired(stage: str, *, is_repaired: bool = True) -> Event:
    return lambda state, now: state.end_reload(stage, now, is_repaired=is_repaired)


EVENTS: dict[str, Event] = {
    "completion": lambda state, now: state.succeeded(),
    "failure": lambda state, now: state.failed(EngineFailed()),
    "away": lambda state, now: state.failed(TritonUnreachable()),
    "answer": lambda state, now: state.answered(IDLE, now),
    "drain": lambda state, now: state.answered(DRAINED, now),
    "miss": lambda state, now: state.missed(TritonTimeout(), now),
    "bad answer": lambda state, now: state.missed(EngineFailed(), now),
    "broken poll": lambda state, now: state.missed(TritonUnreachable(), now),
    "not loaded": lambda state, now: state.missed(ModelNotReady("x"), now),
    "dead engine": lambda state, now: state.missed(StageUnhealthy(ENGINE), now),
    "dead tokenizer": lambda state, now: state.lose(TOKENIZER, now),
    "token": lambda state, now: state.end_trial(IDLE),
    "token while draining": lambda state, now: state.end_trial(DRAINED),
    "no token": lambda state, now: state.end_trial(None),
    "new engine": repaired(ENGINE),
    "new tokenizer": repaired(TOKENIZER),
    "failed load": repaired(ENGINE, is_repaired=False),
}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], State.READY),
        (["failure"] * (MAX_FAILURES - 1), State.READY),
        (["failure"] * MAX_FAILURES, State.FAILING),
        ([*["failure"] * (MAX_FAILURES - 1), "completion", "failure"], State.READY),
        (["away"], State.FAILING),
        (["away", "completion", "answer"], State.FAILING),
        (["away", "no token"], State.FAILING),
        (["away", "token"], State.READY),
        (["away", "token", *["failure"] * (MAX_FAILURES - 1)], State.READY),
        (["away", "token while draining"], State.DRAINING),
        (["drain"], State.DRAINING),
        (["drain", "not loaded"], State.DRAINING),
        (["drain", "answer"], State.READY),
        (["drain", "away"], State.FAILING),
        (["miss", "answer", "miss"], State.READY),
        (["miss", "broken poll", "miss"], State.READY),
        (["miss", "bad answer"], State.RECOVERING),
        (["broken poll"] * 3, State.READY),
        (["not loaded"] * 3, State.READY),
        (["dead engine"], State.RECOVERING),
        (["dead engine", "token", "drain", "completion", "away"], State.RECOVERING),
        (["dead engine", "failed load"], State.RECOVERING),
        (["dead engine", "new engine"], State.FAILING),
        (["dead engine", "new engine", "token"], State.READY),
        (["dead engine", "dead tokenizer", "new engine"], State.RECOVERING),
        (["dead engine", "dead tokenizer", "new engine", "new tokenizer"], State.FAILING),
        (["away", "dead tokenizer", "new tokenizer"], State.FAILING),
    ],
)
def test_each_event_leads_to_its_state(events: list[str], expected: State) -> None:
    clock = Clock()
    state = ReplicaState(ENSEMBLE, clock)
    for event in events:
        EVENTS[event](state, clock.now)
        clock.now += 0.1
    assert state.state is expected


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("no"),
        RateLimited("no"),
        ReaderTooSlow(),
        NotFound("x"),
        ModelNotReady("x"),
        Draining(),
        TritonTimeout(),
        QueueFull("full"),
    ],
)
def test_errors_without_a_fault_of_the_server_are_not_counted(error: APIError) -> None:
    state = ReplicaState(ENSEMBLE, Clock())
    assert not any(state.failed(error) for _ in range(2 * MAX_FAILURES))
    assert state.state is State.READY


def test_a_trial_is_due_after_a_pause_and_at_once_after_a_repair() -> None:
    clock = Clock()
    state = ReplicaState(ENSEMBLE, clock)
    assert not state.is_trial_due
    assert state.failed(TritonUnreachable())
    for _ in range(2):
        assert not state.failed(TritonUnreachable())  # a later failure does not put the trial off
        assert not state.is_trial_due
        clock.now += TRIAL_PAUSE_S
        assert state.is_trial_due
        state.end_trial(None)
    assert state.lose(TOKENIZER, clock.now)
    clock.now += TRIAL_PAUSE_S
    assert not state.is_trial_due
    state.end_reload(TOKENIZER, clock.now, is_repaired=True)
    assert state.is_trial_due


@pytest.mark.parametrize(
    ("event", "verdict"),
    [
        ("answer", Verdict.RESTARTED),
        ("broken poll", Verdict.FINE),  # the streams broke with the connection
        ("not loaded", Verdict.FINE),
        ("new engine", Verdict.FINE),
    ],
)
def test_a_new_epoch_is_a_restart_unless_the_engine_was_known_to_be_away(event: str, verdict: Verdict) -> None:
    clock = Clock()
    state = ReplicaState(ENSEMBLE, clock)
    state.answered(stats(7), clock.now)
    if event == "new engine":
        assert state.missed(StageUnhealthy(ENGINE), clock.now) is Verdict.LOST
    EVENTS[event](state, clock.now)
    assert state.answered(stats(8), clock.now) is verdict


@pytest.mark.parametrize(("duration_s", "pause_s"), [(1.0, RELOAD_PAUSE_S), (240.0, 240.0)])
def test_the_pause_begins_with_the_end_of_a_reload_and_is_at_least_as_long(duration_s: float, pause_s: float) -> None:
    clock = Clock()
    state = ReplicaState(ENSEMBLE, clock)
    began_at = clock.now
    assert state.lose(ENGINE, clock.now)
    assert state.reloads_due() == [ENGINE]
    clock.now += duration_s
    state.end_reload(ENGINE, began_at, is_repaired=False)
    clock.now += pause_s - 0.1
    assert state.reloads_due() == []
    clock.now += 0.2
    assert state.reloads_due() == [ENGINE]


def test_trouble_from_before_a_reload_is_no_news_after_it() -> None:
    # A dead detokenizer answered its queue with errors for seconds, which had the new one reloaded, too.
    clock = Clock()
    state = ReplicaState(ENSEMBLE, clock)
    began = clock.now
    assert state.lose(ENGINE, began)
    assert not state.lose(ENGINE, began)
    clock.now += 1
    state.end_reload(ENGINE, began, is_repaired=True)
    assert not state.lose(ENGINE, began)
    assert [state.answered(stats(7), began), state.missed(StageUnhealthy(ENGINE), began)] == [Verdict.FINE] * 2
    assert state.epoch is None  # the answer was of the old engine
    assert state.lose(ENGINE, clock.now)
