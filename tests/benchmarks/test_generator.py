"""The load generator's own process against a server that answers at once."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.benchmarks.accounting import Processes
from tests.benchmarks.load import Load, Target
from tests.benchmarks.load_result import LoadResult
from tests.benchmarks.runs import measure

LOAD = Load(num_streams=2, num_tokens=5, warmup_s=0.0, window_s=0.2)


def result_of(load: Load, target: Target) -> LoadResult:
    """Send a load."""
    result, _ = measure(load, target, Processes({}))
    return result


def test_a_closed_loop_asks_again_and_again_and_all_answers_are_right(instant: Target) -> None:
    result, window = measure(LOAD, instant, Processes({"server": os.getpid()}))
    assert result.num_failed == 0
    assert result.num_sent > LOAD.num_streams
    assert result.num_tokens > LOAD.num_tokens * LOAD.num_streams
    assert result.ttft_ms.num_values > 0
    assert window.duration_s > LOAD.window_s / 2
    assert window.memory["server"].rss_bytes > 0
    assert window.cpu_s.keys() >= {"server"}


def test_each_stream_asks_as_often_as_it_should(instant: Target) -> None:
    assert result_of(replace(LOAD, requests_per_stream=3), instant).num_sent == 6


def test_an_open_loop_sends_at_the_same_times_for_the_same_seed(instant: Target) -> None:
    load = replace(LOAD, rate_per_s=100.0)
    sent = [result_of(load, instant).num_sent for _ in range(2)]
    assert sent[0] == sent[1] > 0
    assert result_of(replace(load, seed=2), instant).num_failed == 0


def test_arrivals_are_kept_where_they_are_asked_for(instant: Target) -> None:
    result = result_of(replace(LOAD, requests_per_stream=1, keeps_arrivals=True), instant)
    assert [len(times) for times in result.arrivals_s] == [5, 5]


@pytest.mark.parametrize(
    ("model", "says"), [("short", "4 tokens by usage, 5 were asked for"), ("refuses", "status 404")]
)
def test_wrong_answers_are_counted(instant_url: str, model: str, says: str) -> None:
    result = result_of(replace(LOAD, requests_per_stream=1), Target(url=instant_url, model=model))
    assert (result.num_sent, result.num_failed) == (2, 2)
    [error] = result.errors
    assert says in error


def test_a_stream_ends_with_the_first_answer_that_is_no_stream(instant_url: str) -> None:
    result = result_of(LOAD, Target(url=instant_url, model="refuses"))
    assert result.num_sent == result.num_failed == LOAD.num_streams


def test_a_server_that_is_not_there_fails_every_request(instant_url: str) -> None:
    result = result_of(replace(LOAD, rate_per_s=50.0), Target(url="http://127.0.0.1:9", model="m"))
    assert result.num_sent == result.num_failed > 0
    assert "no connection" in next(iter(result.errors))
