"""The arithmetic of a token bucket with continuous refill: pure, shared by every place that keeps buckets."""

from __future__ import annotations

from dataclasses import dataclass

_MINUTE_S = 60.0


@dataclass(slots=True)
class Bucket:
    """What is left of a rate. It is full at the beginning, and holds a minute's worth.

    A settlement may leave it in debt, by a minute's worth at most: nobody is locked out for longer than that again.
    """

    per_minute: int  # above 0
    level: float
    at_s: float  # when the level was that

    @classmethod
    def full(cls, per_minute: int, now_s: float) -> Bucket:
        """Return a new one."""
        return cls(per_minute, float(per_minute), now_s)

    def refill(self, per_minute: int, now_s: float) -> None:
        """Bring the level to now; the rate may have been changed meanwhile."""
        elapsed_s = max(0.0, now_s - self.at_s)  # a clock that goes back refills nothing
        self.per_minute = per_minute
        self.level = min(float(per_minute), self.level + elapsed_s * per_minute / _MINUTE_S)
        self.at_s = max(self.at_s, now_s)

    def wait_s(self, amount: float) -> float:
        """Return how long it takes until so much is there: 0 where it is. Only what can ever fit gets there."""
        return max(0.0, amount - self.level) * _MINUTE_S / self.per_minute

    def add(self, amount: float) -> None:
        """Put back, or take away where it is negative, within a minute's worth of debt and what the bucket holds."""
        self.level = min(float(self.per_minute), max(-float(self.per_minute), self.level + amount))

    @property
    def reset_s(self) -> float:
        """How long it takes until it is full."""
        return self.wait_s(self.per_minute)
