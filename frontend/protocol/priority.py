"""The priorities of requests."""

from __future__ import annotations

from enum import StrEnum


class Priority(StrEnum):
    """The priority of a request among those that wait for the same model."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"

    def is_above(self, other: Priority) -> bool:
        """Whether this priority is higher than another."""
        return _RANKS[self] > _RANKS[other]


_RANKS = {priority: rank for rank, priority in enumerate(Priority)}
