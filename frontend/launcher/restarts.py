"""How often, and after which pauses, a server that dies is started again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 600.0  # the restarts of so long count
_FIRST_PAUSE_S = 1.0
_MAX_PAUSE_S = 30.0


class RestartPlan:
    """Counts restarts. Pure.

    Args:
        max_restarts: within the window; 0: none at all.
        clock: monotonic seconds.
    """

    def __init__(self, max_restarts: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_restarts = max_restarts
        self._clock = clock
        self._died_at: deque[float] = deque()

    def next_pause_s(self) -> float | None:
        """Note that it died; return how long to wait before it is started again, None when it died too often."""
        now = self._clock()
        while self._died_at and now - self._died_at[0] >= WINDOW_S:
            self._died_at.popleft()
        if len(self._died_at) >= self.max_restarts:
            return None
        self._died_at.append(now)
        return float(min(_FIRST_PAUSE_S * 2 ** (len(self._died_at) - 1), _MAX_PAUSE_S))
