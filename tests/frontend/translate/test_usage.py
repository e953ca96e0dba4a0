"""Token counts of a request with several completions."""

from __future__ import annotations

import pytest

from frontend.translate.usage import total_usage
from model_repository.contract.output import Usage


def used(num_input: int, num_output: int, num_cached: int = 0) -> Usage:
    return Usage(num_input_tokens=num_input, num_output_tokens=num_output, num_cached_tokens=num_cached)


def test_one_completions_counts_are_the_engines() -> None:
    assert total_usage({0: used(7, 5, 3)}, 1) == {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 3, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
            "audio_tokens": 0,
        },
    }


@pytest.mark.parametrize(
    ("usages", "num_per_prompt", "expected"),
    [
        ([used(7, 5), used(7, 6), used(7, 7)], 3, (7, 18)),
        ([used(7, 5), used(3, 6)], 1, (10, 11)),
        ([used(7, 1), used(7, 2), used(3, 3), used(3, 4)], 2, (10, 10)),
        ([used(7, 0)], 1, (7, 0)),
    ],
)
def test_a_prompt_counts_once_and_every_completion_counts(
    usages: list[Usage], num_per_prompt: int, expected: tuple[int, int]
) -> None:
    total = total_usage(dict(enumerate(usages)), num_per_prompt)
    assert (total["prompt_tokens"], total["completion_tokens"]) == expected
    assert total["total_tokens"] == sum(expected)


@pytest.mark.parametrize(
    ("usages", "num_per_prompt", "cached"),
    [
        ([used(7, 1, 2), used(7, 1, 6), used(7, 1, 6)], 3, 2),
        ([used(7, 1, 6), used(7, 1, 0)], 2, 0),
        ([used(7, 1, 4), used(7, 1, 6), used(9, 1, 1), used(9, 1, 8)], 2, 5),
    ],
)
def test_cells_that_one_choice_lends_another_were_not_cached_before(
    usages: list[Usage], num_per_prompt: int, cached: int
) -> None:
    assert total_usage(dict(enumerate(usages)), num_per_prompt)["prompt_tokens_details"]["cached_tokens"] == cached
