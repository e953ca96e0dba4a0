"""The state of a caller's limits as OpenAI's headers say it."""

from __future__ import annotations

import math

from frontend.gateway.types import Reading, tightest

_MINUTE_S = 60


def rate_headers(readings: tuple[Reading, ...]) -> dict[str, str]:
    """Return x-ratelimit-{limit,remaining,reset}-{requests,tokens}; where several limits count, the tightest."""
    headers = {}
    for resource, reading in tightest(readings).items():
        headers[f"x-ratelimit-limit-{resource}"] = str(reading.limit)
        headers[f"x-ratelimit-remaining-{resource}"] = str(reading.remaining)
        headers[f"x-ratelimit-reset-{resource}"] = duration(reading.reset_s)
    return headers


def duration(seconds: float) -> str:
    """Return a time as OpenAI writes it: 17ms, 1s, 8.64s, 6m0s. It is rounded up, so that waiting so long is enough."""
    num_ms = math.ceil(round(seconds * 1000, 3))
    if num_ms < 1000:
        return f"{num_ms}ms"
    minutes, rest_ms = divmod(num_ms, _MINUTE_S * 1000)
    return f"{minutes}m{rest_ms / 1000:g}s" if minutes else f"{rest_ms / 1000:g}s"
