"""OpenAI's headers about the limits of a key."""

from __future__ import annotations

import math
from collections.abc import Sequence

from frontend.gateway.types import Reading


def rate_headers(readings: Sequence[Reading]) -> dict[str, str]:
    """Return x-ratelimit-{limit,remaining,reset}-{requests,tokens}: of several limits, the one with the least left."""
    headers = {}
    for reading in sorted(readings, key=lambda each: each.used_s):
        headers[f"x-ratelimit-limit-{reading.rate}"] = str(reading.limit)
        headers[f"x-ratelimit-remaining-{reading.rate}"] = str(reading.remaining)
        headers[f"x-ratelimit-reset-{reading.rate}"] = duration(reading.used_s)
    return headers


def duration(seconds: float) -> str:
    """Return a time in OpenAI's format, rounded up: 17ms, 1s, 8.64s, 6m0s."""
    num_ms = math.ceil(round(seconds * 1000, 3))
    if num_ms < 1000:
        return f"{num_ms}ms"
    minutes, rest_ms = divmod(num_ms, 60_000)
    return f"{minutes}m{rest_ms / 1000:g}s" if minutes else f"{rest_ms / 1000:g}s"
