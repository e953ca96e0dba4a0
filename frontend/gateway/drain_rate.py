"""How fast a full model finishes completions; the wait of a queued request is estimated from it. Pure."""

from __future__ import annotations

import math

_MEMORY_S = 10.0  # of full time: older events count for less
_FIRST_S = 5.0  # of full time: no completion may have ended yet


class DrainRate:
    """Completions that end per second while all places are taken; no other time counts.

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

    def ended(self, num_completions: int) -> None:
        """Count completions that have ended; they count only while all places are taken."""
        if self._at_s is not None:
            self._num_ended += num_completions

    def wait_s(self, num_completions: int, num_running: int) -> float:
        """Estimated seconds until `num_completions` have ended at the recent rate.

        A burst arrives before any completion could end. So during the first seconds of full time the estimate assumes
        that all running completions end now.
        """
        num_ended = max(self._num_ended, num_running) if self._full_s < _FIRST_S else self._num_ended
        return num_completions * self._full_s / max(1.0, num_ended)
