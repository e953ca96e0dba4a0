"""Durations and sizes of people."""

from __future__ import annotations

import math

import pytest

from model_repository.quantities import bytes_of, seconds_of


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("500ms", 0.5),
        ("300", 300),
        (300, 300),
        (0.5, 0.5),
        ("0", 0),
        (0, 0),
        ("-1", math.inf),
        ("-5m", math.inf),
        (-1, math.inf),
        (10**400, 1e15),
    ],
)
def test_a_duration_has_the_form_of_ollama(value: object, seconds: float) -> None:
    assert seconds_of(value) == seconds


@pytest.mark.parametrize("value", ["", "5x", "m", "5 m", "1h-5m", "5M", "never", "9" * 400, None, True, [], math.nan])
def test_another_value_is_no_duration(value: object) -> None:
    with pytest.raises(ValueError, match="expected a duration such as 30s, 5m or 1h30m"):
        seconds_of(value)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("123", 123), ("500M", 500_000_000), ("1.5g", 1_500_000_000), ("8Gi", 8 << 30), ("8GiB", 8 << 30), ("1kB", 1000)],
)
def test_a_size_has_a_prefix_of_ten_or_two(text: str, num_bytes: int) -> None:
    assert bytes_of(text) == num_bytes


@pytest.mark.parametrize("text", ["", "0", "-1", "G", "8 G", "1e9", "0.0001", "9" * 400])
def test_another_text_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number of bytes above 0"):
        bytes_of(text)
