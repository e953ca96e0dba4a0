"""Bounds how many requests are sent a second time, so that an outage does not double the load."""

from __future__ import annotations

MAX_SAVED = 10.0  # retries, that were not needed while all was well; also what there is at the start


class RetryBudget:
    """A token bucket that requests fill, not time. Pure.

    Args:
        share: of the requests that may be sent again, 0 to 1.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._saved = MAX_SAVED if share else 0.0

    def count_request(self) -> None:
        """Note a request that was not sent before."""
        self._saved = min(MAX_SAVED, self._saved + self._share)

    def take(self) -> bool:
        """Return whether a request may be sent again."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True
