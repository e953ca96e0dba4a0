"""When released tokens leave: at once while there is time for it, several together under load."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# What leaving costs through detokenizer, tritonserver and frontend, in CPU time of the machine that also steps.
BATCH_COST_S = 250e-6  # of an output batch, ...
ITEM_COST_S = 30e-6  # ... and of each sequence in it


@dataclass(frozen=True, slots=True)
class Waiting:
    """A sequence with released tokens that have not left yet."""

    key: int
    since_s: float  # when the oldest of them was released
    stream: int  # the number of its output stream
    is_urgent: bool = False  # first tokens and last tokens never wait
    max_wait_s: float | None = None  # its reader's own; None: the emitter's


class Emitter:
    """Keeps the cost of what leaves a bounded share of the time, and every reader's wait under `max_wait_s`.

    The share is a budget that fills as time goes by. What leaves may overdraw it; then the others wait until it is
    filled again, and gather tokens meanwhile. It holds what fills it in `max_wait_s`, enough for what piled up in that
    time, and owes no more than that either: what an overload cost does not make those wait who come after it.

    Args:
        max_share: the share of the time, of one core, that sending may cost.
        max_wait_s: released tokens leave after this long at the latest.
    """

    def __init__(self, *, max_share: float = 0.5, max_wait_s: float = 0.04) -> None:
        self._max_share = max_share
        self._max_wait_s = max_wait_s
        self._max_budget_s = max_share * max_wait_s
        self._budget_s = 0.0
        self._filled_s = 0.0  # when the budget was last filled

    def due(self, waiting: Iterable[Waiting], now_s: float) -> list[int]:
        """Return the keys of the sequences to send now: urgent and overdue ones, then the longest-waiting streams.

        The others leave while the budget lasts.
        """
        self._fill(now_s)
        due: list[int] = []
        others: dict[int, list[Waiting]] = {}  # by stream
        leaving: set[int] = set()  # streams of which a batch leaves anyway
        for item in sorted(waiting, key=lambda item: item.since_s):
            if item.is_urgent or now_s - item.since_s >= self._limit_of(item):
                self._charge([item], leaving)
                due.append(item.key)
            else:
                others.setdefault(item.stream, []).append(item)
        for group in others.values():
            if self._budget_s <= 0:
                break
            self._charge(group, leaving)
            due += [item.key for item in group]
        self._budget_s = max(self._budget_s, -self._max_budget_s)
        return due

    def _fill(self, now_s: float) -> None:
        filled_s = self._budget_s + self._max_share * (now_s - self._filled_s)
        self._budget_s = min(filled_s, self._max_budget_s)
        self._filled_s = now_s

    def _limit_of(self, item: Waiting) -> float:
        return self._max_wait_s if item.max_wait_s is None else item.max_wait_s

    def _charge(self, group: list[Waiting], leaving: set[int]) -> None:
        """Charge for items of one stream."""
        stream = group[0].stream
        self._budget_s -= ITEM_COST_S * len(group) + (0.0 if stream in leaving else BATCH_COST_S)
        leaving.add(stream)
