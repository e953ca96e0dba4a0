"""Notices a stage beside the engine that hangs: the engine works, but nothing of what is waited for moves."""

from __future__ import annotations


class StallClock:
    """For how long something has not moved. Pure.

    Only such time counts as the caller has seen to be fair: while the engine works.
    """

    def __init__(self) -> None:
        self._num_moves = 0
        self._stalled_s = 0.0

    def look(self, num_moves: int, fair_s: float) -> float:
        """Return for how many seconds a count has not changed.

        Args:
            num_moves: the count.
            fair_s: how much of the time since the last look is fair.
        """
        self._stalled_s = self._stalled_s + fair_s if num_moves == self._num_moves else 0.0
        self._num_moves = num_moves
        return self._stalled_s
