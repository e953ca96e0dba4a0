"""How fast a full model lets go of requests: what a waiting request's time is estimated from. Pure."""

from __future__ import annotations

import math

_MEMORY_S = 10.0  # of full time: older events count for less


class DrainRate:
    """Requests that end per second while all places are taken; no other time counts.

    Events and time both fade, so the estimate is right from the first seconds on, and falls while nothing ends.
    """

    def __init__(self) -> None:
        self._num_ended = 0.0
        self._full_s = 0.0
        self._at_s: float | None = None  # up to when the current full time is counted; None: it is not full

    def advance(self, now_s: float, *, is_full: bool) -> None:
        """Say whether all places are taken from now on."""
        if self._at_s is not None and now_s > self._at_s:
            elapsed_s = now_s - self._at_s
            faded = math.exp(-elapsed_s / _MEMORY_S)
            self._num_ended *= faded
            self._full_s = self._full_s * faded + elapsed_s
        self._at_s = now_s if is_full else None

    def ended(self) -> None:
        """Count a request that has ended; it counts only while all places are taken."""
        if self._at_s is not None:
            self._num_ended += 1

    def wait_s(self, num_requests: int) -> float:
        """Return how long it takes until so many have ended; as long as none has, as if one did now."""
        return num_requests * self._full_s / max(1.0, self._num_ended)
