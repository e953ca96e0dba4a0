"""Keeps requests from a model that fails on one replica, until a probe has shown that it is well again."""

from __future__ import annotations

import math
from collections.abc import Callable


class CircuitBreaker:
    """Whether one model of one replica gets requests. Pure.

    Closed: it does. Open: it does not. Half-open: it does not either, but a probe is under way.

    Args:
        max_failures: in a row, which open it.
        pause_s: between its opening, or a failed probe, and the next probe.
        clock: monotonic seconds.
    """

    def __init__(self, *, max_failures: int, pause_s: float, clock: Callable[[], float]) -> None:
        self._max_failures = max_failures
        self._pause_s = pause_s
        self._clock = clock
        self._num_failures = 0
        self._probe_at_s = math.inf  # when open
        self.is_closed = True

    def succeeded(self) -> None:
        """Note a completion. One that was begun before it opened says nothing about what is there now."""
        self._num_failures = 0

    def failed(self) -> None:
        """Note a failure that was not the client's fault."""
        self._num_failures += 1
        if self._num_failures >= self._max_failures:
            self.open()

    def open(self) -> None:
        """Let nothing through until a probe has succeeded."""
        if self.is_closed:
            self.is_closed = False
            self._probe_at_s = self._clock() + self._pause_s

    def take_probe(self) -> bool:
        """Return whether a probe is due; whoever gets it must say with `probed` how it went."""
        if self.is_closed or self._clock() < self._probe_at_s:
            return False
        self._probe_at_s = math.inf
        return True

    def probed(self, *, is_well: bool) -> None:
        """Close after a probe that succeeded; else wait for the next one."""
        self._num_failures = 0
        self.is_closed = is_well
        self._probe_at_s = self._clock() + self._pause_s
