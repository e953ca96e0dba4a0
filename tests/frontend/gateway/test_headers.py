"""The state of the limits in OpenAI's words."""

from __future__ import annotations

import pytest

from frontend.gateway.headers import duration, rate_headers
from frontend.gateway.types import Reading, Resource


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0171, "18ms"),
        (0.9999, "1s"),
        (1, "1s"),
        (8.64, "8.64s"),
        (59.9999, "1m0s"),
        (60, "1m0s"),
        (61.5, "1m1.5s"),
        (360, "6m0s"),
    ],
)
def test_times_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_of_several_limits_the_tightest_is_told() -> None:
    readings = (Reading(Resource.REQUESTS, 100, 50, 30.0), Reading(Resource.REQUESTS, 10, 4, 36.0))
    assert rate_headers(readings) == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "4",
        "x-ratelimit-reset-requests": "36s",
    }
