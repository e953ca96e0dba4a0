"""Waits for models, as their clients see them."""

from __future__ import annotations

import asyncio

import pytest

from tests.workshop.load.http_stream import Exchange
from tests.workshop.load.swap_traffic import (
    Alone,
    Answer,
    Model,
    answer_of,
    fair_wait_s,
    figures,
    num_overtaking,
    swaps,
    traffic,
)

CHATS = Model("a", "chat/completions")
ALONE = {"a": Alone(warm_s=1.0, swap_s=3.0), "b": Alone(warm_s=0.5, swap_s=4.5)}


def answer(model: str, sent_s: float, first_s: float, ended_s: float) -> Answer:
    return Answer(model=model, sent_s=sent_s, first_s=first_s, ended_s=ended_s)


def test_a_wait_is_explained_by_the_loads_and_the_answers_before_it() -> None:
    running = answer("a", sent_s=0, first_s=2, ended_s=11)  # 9 s of the wait below
    beside = answer("a", sent_s=1, first_s=5, ended_s=12)  # 1 s more: the rest is at the same time
    waiting = answer("b", sent_s=2, first_s=18, ended_s=20)
    answers = [running, beside, waiting]
    assert swaps(answers) == [waiting]
    assert fair_wait_s(waiting, answers, ALONE) == 9 + 1 + ALONE["b"].load_s + ALONE["b"].warm_s
    later = answer("a", sent_s=19, first_s=24, ended_s=25)
    assert fair_wait_s(later, [*answers, later], ALONE) == 1 + ALONE["a"].load_s + ALONE["a"].warm_s
    assert fair_wait_s(waiting, [*answers, later], ALONE) == fair_wait_s(waiting, answers, ALONE)


def test_later_requests_for_other_models_overtake() -> None:
    waiting = answer("b", sent_s=2, first_s=18, ended_s=20)
    earlier, same, later = answer("a", 1, 3, 4), answer("b", 3, 5, 6), answer("a", 3, 17, 18)
    assert num_overtaking(waiting, [waiting, earlier, same, later, answer("a", 3, 19, 20)]) == 1


@pytest.mark.parametrize(
    ("status", "body", "errors", "broken"),
    [
        (503, b'{"error": {"code": "model_too_large", "message": "no room"}}', "1: 1 503 model_too_large", "0"),
        (200, b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n', "0", "1: 1 the stream ended"),
    ],
)
def test_errors_and_broken_streams_are_counted_apart(status: int, body: bytes, errors: str, broken: str) -> None:
    exchange = Exchange(0.0, status=status, pieces=[(1.0, body)], ended_s=2.0)
    row = figures([answer_of(CHATS, 0.0, exchange)], ALONE)
    assert row["errors"] == errors
    assert row["broken streams"].startswith(broken)


def test_a_server_that_is_gone_is_an_error_of_each_client() -> None:
    answers = asyncio.run(traffic("http://127.0.0.1:1", [[CHATS], [CHATS]], seconds=0.01, seed=1))
    assert [each.error.partition(":")[0] for each in answers] == ["ConnectionRefusedError"] * 2
