from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.benchmarks.measures import (
    Quantiles,
    Spread,
    added_inter_token_s,
    kept_pace,
    latency_after_steps_s,
    lateness_s,
    slope,
    token_arrivals,
)


def test_quantiles_of_the_numbers_to_a_hundred_are_themselves() -> None:
    quantiles = Quantiles.of(list(range(101)))
    assert [quantiles.at(percent) for percent in (0, 50, 99, 100)] == [0, 50, 99, 100]
    assert quantiles.num_values == 101


def test_quantiles_of_nothing_are_not_numbers() -> None:
    assert math.isnan(Quantiles.of([]).at(50))


def test_a_spread_is_median_lowest_and_highest() -> None:
    assert Spread.of([3.0, 1.0, 2.0, 9.0, 2.5]) == Spread(2.5, 1.0, 9.0)


def test_tokens_of_one_chunk_arrive_together() -> None:
    arrivals = token_arrivals([1.0, 2.0], [3, 6], num_tokens=3, token_ends=(1, 3, 9))
    assert arrivals.tolist() == [1.0, 1.0, 2.0]


def test_a_token_split_over_chunks_arrives_with_its_last_character() -> None:
    assert token_arrivals([1.0, 2.0], [2, 2], num_tokens=2, token_ends=(3, 4)).tolist() == [2.0, 2.0]


def test_tokens_of_unknown_length_are_taken_to_be_equally_long() -> None:
    assert token_arrivals([1.0, 2.0, 3.0], [4, 4, 4], num_tokens=6).tolist() == [1, 1, 2, 2, 3, 3]


def test_a_completion_without_text_has_no_arrivals() -> None:
    assert len(token_arrivals([], [], num_tokens=3)) == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=20), st.integers(1, 40))
def test_every_token_has_an_arrival_and_they_are_in_order(chunks: list[tuple[int, int]], num_tokens: int) -> None:
    times = np.cumsum([gap for gap, _ in chunks]).tolist()
    arrivals = token_arrivals(times, [chars for _, chars in chunks], num_tokens)
    assert len(arrivals) == num_tokens
    assert arrivals[-1] == times[-1]
    assert (np.diff(arrivals) >= 0).all()


def test_added_latency_and_lateness_of_tokens_that_came_two_by_two() -> None:
    arrivals = np.array([0.0, 0.02, 0.02, 0.04])  # the engine makes one every 10 ms
    assert added_inter_token_s(arrivals, 0.01) == pytest.approx([0.01, -0.01, 0.01])
    assert lateness_s(arrivals, 0.01) == pytest.approx([0, 0.01, 0, 0.01])
    assert kept_pace(arrivals, 0.01) == pytest.approx(0.75)


def test_a_single_token_has_no_pace() -> None:
    assert math.isnan(kept_pace(np.array([1.0]), 0.01))


def test_latency_is_counted_from_the_last_step_before_a_token() -> None:
    steps = np.array([1.00, 1.02, 1.04])
    assert latency_after_steps_s(np.array([1.001, 1.0199, 1.042]), steps, 0.02) == pytest.approx(
        [0.001, -0.0001, 0.002]
    )


def test_a_token_whose_step_was_not_seen_is_left_out() -> None:
    arrivals = np.array([0.5, 1.001, 1.081])  # before every step seen, at one, long after the last
    assert latency_after_steps_s(arrivals, np.array([1.0, 1.02]), 0.02) == pytest.approx([0.001])


def test_the_slope_of_a_line_is_its_slope() -> None:
    assert slope([10, 20, 30], [5, 25, 45]) == pytest.approx(2)
    assert slope([1], [5]) == 0
