"""When final tokens are sent: at once, or under load several together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# The cost of sending through detokenizer, tritonserver and frontend: CPU time of the machine that also computes steps.
BATCH_COST_S = 250e-6  # one output batch, ...
ITEM_COST_S = 30e-6  # ... and each sequence in the batch


@dataclass(frozen=True, slots=True)
class PendingOutput:
    """A sequence with final tokens that are not sent yet."""

    key: int
    since_s: float  # when the oldest of them became final
    stream: int  # the number of its output stream
    is_urgent: bool = False  # first tokens and last tokens never wait
    max_wait_s: float | None = None  # the request's own limit; None: the emitter's
    is_held: bool = False  # waits until the last batch of the stream is sent, or the longest wait is over


class Emitter:
    """Keeps the cost of sending within a share of the time, and every wait under `max_wait_s`.

    The share fills a budget as time passes. Sending may overdraw the budget; then the other sequences gather tokens
    until it is positive again. Savings and debts are at most the share of `max_wait_s`: enough for the tokens of that
    time, and little enough that requests after an overload do not wait for its costs.

    Args:
        max_share: the share of one core's time that sending may cost.
        max_wait_s: the longest wait of a final token.
    """

    def __init__(self, *, max_share: float = 0.5, max_wait_s: float = 0.04) -> None:
        self._max_share = max_share
        self._max_wait_s = max_wait_s
        self._max_budget_s = max_share * max_wait_s
        self._budget_s = 0.0
        self._filled_s = 0.0  # when the budget was last filled

    def due(self, waiting: Iterable[PendingOutput], now_s: float, *, may_hold: bool = True) -> list[int]:
        """Return the keys of the sequences to send now: urgent and overdue ones, then the longest-waiting streams.

        The longest-waiting streams are sent while the budget lasts.

        Args:
            may_hold: this is called again soon; else nothing may be held.
        """
        step_s = now_s - self._filled_s  # since the last call, and probably until the next one
        self._fill(now_s)
        due: list[int] = []
        others: dict[int, list[PendingOutput]] = {}  # stream to its sequences
        sent: set[int] = set()  # streams with a batch to send
        for item in sorted(waiting, key=lambda item: item.since_s):
            max_wait_s = self._max_wait_s if item.max_wait_s is None else item.max_wait_s
            waited_s = now_s - item.since_s
            if item.is_held and may_hold and waited_s < max_wait_s:
                continue
            if item.is_urgent or waited_s + step_s >= max_wait_s:
                self._charge([item], sent)
                due.append(item.key)
            else:
                others.setdefault(item.stream, []).append(item)
        for group in others.values():
            if self._budget_s <= 0:
                break
            self._charge(group, sent)
            due += [item.key for item in group]
        self._budget_s = max(self._budget_s, -self._max_budget_s)
        return due

    def _fill(self, now_s: float) -> None:
        filled_s = self._budget_s + self._max_share * (now_s - self._filled_s)
        self._budget_s = min(filled_s, self._max_budget_s)
        self._filled_s = now_s

    def _charge(self, group: list[PendingOutput], sent: set[int]) -> None:
        """Charge for items of one stream."""
        stream = group[0].stream
        self._budget_s -= ITEM_COST_S * len(group) + (0.0 if stream in sent else BATCH_COST_S)
        sent.add(stream)
