"""When released tokens leave as a response: at once while there is time for it, several together under load."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# A response through detokenizer, tritonserver and frontend costs about this much CPU on the machine that also steps.
RESPONSE_COST_S = 200e-6


@dataclass(frozen=True, slots=True)
class Waiting:
    """A sequence with released tokens that have not left yet."""

    key: int
    since_s: float  # when the oldest of them was released
    is_urgent: bool = False  # first tokens and last tokens never wait


class Emitter:
    """Keeps the cost of responses a bounded share of the step time, and every reader's wait under `max_wait_s`.

    Args:
        max_share: the share of a step's duration that its responses may cost.
        max_wait_s: released tokens leave after this long at the latest.
    """

    def __init__(self, *, max_share: float = 0.5, max_wait_s: float = 0.04) -> None:
        self._max_share = max_share
        self._max_wait_s = max_wait_s
        self._step_s = 0.0  # moving average

    def record_step(self, duration_s: float) -> None:
        """Take note of how long a step of the runtime took."""
        self._step_s += 0.2 * (duration_s - self._step_s)

    def due(self, waiting: Iterable[Waiting], now_s: float) -> list[int]:
        """Return the keys of the sequences whose tokens leave now, the longest waiting first."""
        num_affordable = max(1, int(self._max_share * self._step_s / RESPONSE_COST_S))
        due: list[int] = []
        for item in sorted(waiting, key=lambda item: item.since_s):
            is_overdue = now_s - item.since_s >= self._max_wait_s
            if item.is_urgent or is_overdue or num_affordable > 0:
                due.append(item.key)
                num_affordable -= 1
        return due
