"""When released tokens leave."""

from __future__ import annotations

from model_repository.engine.emitter import RESPONSE_COST_S, Emitter, Waiting

JUST_NOW = 10.0


def waiting(num: int, since_s: float = JUST_NOW, *, is_urgent: bool = False) -> list[Waiting]:
    return [Waiting(key=key, since_s=since_s, is_urgent=is_urgent) for key in range(num)]


def emitter_with_steps_of(step_s: float) -> Emitter:
    emitter = Emitter(max_share=0.5, max_wait_s=0.04)
    for _ in range(100):  # the average has settled
        emitter.record_step(step_s)
    return emitter


def test_a_lonely_sequence_never_waits() -> None:
    assert Emitter().due(waiting(1), JUST_NOW) == [0]


def test_responses_cost_at_most_their_share_of_a_step() -> None:
    emitter = emitter_with_steps_of(20.5 * RESPONSE_COST_S)
    assert len(emitter.due(waiting(64), JUST_NOW)) == 10


def test_slow_steps_leave_time_for_every_response() -> None:
    assert len(emitter_with_steps_of(1.0).due(waiting(64), JUST_NOW)) == 64


def test_the_longest_waiting_leave_first() -> None:
    items = [Waiting(key=1, since_s=9.99), Waiting(key=2, since_s=9.97), Waiting(key=3, since_s=9.98)]
    assert emitter_with_steps_of(4.1 * RESPONSE_COST_S).due(items, JUST_NOW) == [2, 3]


def test_first_and_last_tokens_leave_whatever_the_load() -> None:
    assert len(Emitter().due(waiting(64, is_urgent=True), JUST_NOW)) == 64


def test_urgent_responses_use_up_the_share_of_the_others() -> None:
    items = [Waiting(key=1, since_s=9.97, is_urgent=True), Waiting(key=2, since_s=9.98)]
    assert Emitter().due(items, JUST_NOW) == [1]


def test_nobody_waits_longer_than_the_limit() -> None:
    emitter = emitter_with_steps_of(RESPONSE_COST_S)
    assert len(emitter.due(waiting(64, since_s=JUST_NOW - 0.041), JUST_NOW)) == 64
    assert len(emitter.due(waiting(64, since_s=JUST_NOW - 0.039), JUST_NOW)) == 1


def test_one_slow_step_does_not_open_the_gate() -> None:
    emitter = emitter_with_steps_of(RESPONSE_COST_S)
    emitter.record_step(20 * RESPONSE_COST_S)
    assert len(emitter.due(waiting(64), JUST_NOW)) == 2


def test_nothing_waiting_is_nothing_due() -> None:
    assert Emitter().due([], JUST_NOW) == []
