"""The priorities that a request may ask for."""

from __future__ import annotations

from enum import StrEnum


class Priority(StrEnum):
    """How urgent a request is, against others that wait for the same model."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"

    def is_above(self, other: Priority) -> bool:
        """Whether it is more urgent than another."""
        order = tuple(Priority)
        return order.index(self) > order.index(other)
