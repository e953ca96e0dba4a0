"""Cancels that have overtaken their requests in the tokenizer stage."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

REMEMBERED_S = 10.0


class EarlyCancels:
    """The cancel keys of requests that are still to come. Pure.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cancelled_s: OrderedDict[str, float] = OrderedDict()  # by key, the latest last

    def add(self, key: str) -> None:
        """Remember a key, and forget those of long ago."""
        now_s = self._clock()
        self._cancelled_s[key] = now_s
        self._cancelled_s.move_to_end(key)
        while now_s - next(iter(self._cancelled_s.values())) > REMEMBERED_S:
            self._cancelled_s.popitem(last=False)

    def take(self, key: str) -> bool:
        """Return whether the request with this key was cancelled before it came. It is used once."""
        cancelled_s = self._cancelled_s.pop(key, None) if key else None
        return cancelled_s is not None and self._clock() - cancelled_s <= REMEMBERED_S
