"""Token counts of a request with several completions, and the padding of events."""

from __future__ import annotations

import pytest

from frontend.translate.reply import padding, total_usage
from model_repository.contract.output import Usage


def used(num_input: int, num_output: int, num_cached: int = 0) -> Usage:
    return Usage(num_input_tokens=num_input, num_output_tokens=num_output, num_cached_tokens=num_cached)


@pytest.mark.parametrize(
    ("usages", "num_per_prompt", "expected"),
    [
        ([used(7, 5, 3)], 1, (7, 5, 3)),
        ([used(7, 0)], 1, (7, 0, 0)),
        ([used(7, 5), used(7, 6), used(7, 7)], 3, (7, 18, 0)),
        ([used(7, 5), used(3, 6)], 1, (10, 11, 0)),
        ([used(7, 1, 2), used(7, 1, 6), used(7, 1, 6)], 3, (7, 3, 2)),
        ([used(7, 1, 4), used(7, 2, 6), used(9, 3, 1), used(9, 4, 8)], 2, (16, 10, 5)),
    ],
)
def test_each_prompt_counts_once_with_its_smallest_cache_and_each_completion_counts(
    usages: list[Usage], num_per_prompt: int, expected: tuple[int, int, int]
) -> None:
    num_input, num_output, num_cached = expected
    assert total_usage(dict(enumerate(usages)), num_per_prompt) == {
        "prompt_tokens": num_input,
        "completion_tokens": num_output,
        "total_tokens": num_input + num_output,
        "prompt_tokens_details": {
            "cached_tokens": num_cached,
            "cache_write_tokens": num_input - num_cached,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
            "audio_tokens": 0,
        },
    }


@pytest.mark.parametrize("num_chars", [0, 1, 15, 16, 17])
def test_padding_is_never_empty_and_fills_a_block(num_chars: int) -> None:
    assert 0 < len(padding(num_chars)) <= 16
    assert (num_chars + len(padding(num_chars))) % 16 == 0
