"""When tokens are sent: a budget that fills with a share of the clock."""

from __future__ import annotations

import pytest

from model_repository.engine.emitter import BATCH_COST_S, ITEM_COST_S, Emitter, PendingOutput

START_S = 10.0
MAX_WAIT_S = 0.04
STREAM, OTHER_STREAM = 1001, 1002
SINGLE_COST_S = BATCH_COST_S + ITEM_COST_S  # of a batch with one item


def waiting(
    num: int, since_s: float = START_S, stream: int | None = None, *, is_urgent: bool = False
) -> list[PendingOutput]:
    """Return sequences of one stream, or each with a stream of its own."""
    return [
        PendingOutput(key=key, since_s=since_s, stream=key if stream is None else stream, is_urgent=is_urgent)
        for key in range(num)
    ]


def emitter(budget_s: float, now_s: float = START_S) -> Emitter:
    """Return one with this budget at this time; half of the time from then on fills it."""
    item = Emitter(max_share=0.5, max_wait_s=1.0)
    item.due([], now_s)
    item._budget_s = budget_s
    return item


def num_due(item: Emitter, waiters: list[PendingOutput], now_s: float = START_S) -> int:
    return len(item.due(waiters, now_s))


# --- a batch on its way ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_urgent", [False, True])
def test_outputs_wait_for_the_batch_before_them_but_not_too_long(is_urgent: bool) -> None:
    item = Emitter(max_wait_s=MAX_WAIT_S)
    held = PendingOutput(key=1, since_s=START_S, stream=STREAM, is_urgent=is_urgent, is_held=True)
    at_once = PendingOutput(key=2, since_s=START_S, stream=STREAM, max_wait_s=0.0, is_held=True)
    assert item.due([held, at_once], START_S) == [2]
    assert item.due([held], START_S, may_hold=False) == [1]
    assert item.due([held], START_S + 1.01 * MAX_WAIT_S) == [1]


# --- the budget ------------------------------------------------------------------------------------------------------


def test_batches_cost_at_most_their_share_of_the_time() -> None:
    item = emitter(0.0)
    num_sent = sum(num_due(item, waiting(64, START_S + step * 1e-3), START_S + step * 1e-3) for step in range(1, 101))
    assert num_sent == pytest.approx(0.5 * 0.1 / SINGLE_COST_S, abs=1)


def test_sending_may_overdraw_the_budget_and_others_wait_until_it_is_positive() -> None:
    item = emitter(SINGLE_COST_S / 2)
    assert item.due(waiting(3), START_S) == [0]
    assert item.due(waiting(3), START_S + 0.99 * SINGLE_COST_S) == []
    assert item.due(waiting(3), START_S + 1.01 * SINGLE_COST_S) == [0]


def test_all_tokens_of_the_longest_wait_are_sent_together() -> None:
    """With a smaller budget the same third of the sequences went every third step, and the others when overdue."""
    item = Emitter(max_share=0.5, max_wait_s=MAX_WAIT_S)
    num_sequences = int(0.5 * MAX_WAIT_S / SINGLE_COST_S)  # the budget of the longest wait
    item.due([], START_S)
    for turn in range(1, 20):
        now_s = START_S + turn * MAX_WAIT_S
        since_s = now_s - 0.9 * MAX_WAIT_S
        assert num_due(item, waiting(num_sequences, since_s), now_s) == num_sequences


def test_the_debt_of_an_overload_does_not_outlive_the_longest_wait() -> None:
    """The debt of minutes made a lonely stream wait 40 ms for each token long after the load had ended."""
    item = Emitter(max_share=0.5, max_wait_s=MAX_WAIT_S)
    for step in range(200):
        now_s = START_S + step * 1e-3
        item.due(waiting(500, now_s, is_urgent=True), now_s)
    assert item.due(waiting(1, now_s), now_s) == []
    assert item.due(waiting(1, now_s + 1.01 * MAX_WAIT_S), now_s + 1.01 * MAX_WAIT_S) == [0]


# --- sequences that do not wait for the budget ----------------------------------------------------------------------


@pytest.mark.parametrize("stream", [None, STREAM])
def test_first_and_last_tokens_are_sent_under_any_load(stream: int | None) -> None:
    assert num_due(emitter(-1.0), waiting(64, is_urgent=True, stream=stream)) == 64


@pytest.mark.parametrize("stream", [None, STREAM])
def test_no_sequence_waits_longer_than_the_limit(stream: int | None) -> None:
    item = Emitter(max_wait_s=MAX_WAIT_S)
    item.due(waiting(500, is_urgent=True), START_S)  # nothing is left
    assert num_due(item, waiting(64, START_S - 0.039, stream=stream)) == 0
    assert num_due(item, waiting(64, START_S - 0.041, stream=stream)) == 64


def test_outputs_are_sent_early_if_the_next_step_would_end_after_the_limit() -> None:
    """With steps of 30 ms each token was sent after 60 ms."""
    item = emitter(-1.0)
    limited = [PendingOutput(key=1, since_s=START_S + 0.03, max_wait_s=MAX_WAIT_S, stream=STREAM)]
    assert item.due(limited, START_S + 0.03) == []
    assert item.due(limited, START_S + 0.04) == []
    assert item.due(limited, START_S + 0.06) == [1]


def test_a_reader_has_a_limit_of_its_own() -> None:
    item = emitter(-1.0)  # others wait for up to a second
    items = [
        PendingOutput(key=1, since_s=START_S, max_wait_s=0.0, stream=1),
        PendingOutput(key=2, since_s=START_S - 0.05, max_wait_s=0.04, stream=2),
        PendingOutput(key=3, since_s=START_S - 0.05, max_wait_s=0.06, stream=3),
        PendingOutput(key=4, since_s=START_S - 0.5, stream=4),
    ]
    assert sorted(item.due(items, START_S)) == [1, 2]


# --- streams of several sequences ------------------------------------------------------------------------------------


def test_a_batch_costs_little_for_each_further_sequence() -> None:
    item = emitter(1e-6)
    item.due(waiting(10, stream=STREAM), START_S)
    cost_s = BATCH_COST_S + 10 * ITEM_COST_S
    assert num_due(item, waiting(1), START_S + 1.95 * cost_s) == 0
    assert num_due(item, waiting(1), START_S + 2.05 * cost_s) == 1


def test_a_further_item_of_an_urgent_batch_costs_no_second_batch() -> None:
    urgent = [PendingOutput(key=1, since_s=START_S, is_urgent=True, stream=STREAM)]
    mine, others = (
        [PendingOutput(key=2, since_s=START_S, stream=STREAM)],
        [PendingOutput(key=3, since_s=START_S + 1e-6, stream=OTHER_STREAM)],
    )
    cost_s = BATCH_COST_S + 2 * ITEM_COST_S
    assert emitter(cost_s + 1e-6).due(urgent + mine + others, START_S) == [1, 2, 3]
    assert emitter(cost_s - 1e-6).due(urgent + mine + others, START_S) == [1, 2]


def test_the_longest_waiting_are_sent_first() -> None:
    items = [
        PendingOutput(key=1, since_s=9.99, stream=1),
        PendingOutput(key=2, since_s=9.97, stream=2),
        PendingOutput(key=3, since_s=9.98, stream=3),
    ]
    assert emitter(1.5 * SINGLE_COST_S).due(items, START_S) == [2, 3]
