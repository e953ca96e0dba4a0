"""Cancels that arrive before their requests, which are still in the tokenizer stage."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from model_repository.contract.cancel_channel import key_to_number

REMEMBERED_S = 10.0
MAX_KEYS = 10_000


class PendingCancels:
    """The cancel keys of requests that have not arrived."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._cancelled_s: OrderedDict[int, float] = OrderedDict()  # key number to the cancel's time; the latest last

    def add(self, key: str) -> None:
        """Remember a key; forget old keys, and the oldest ones beyond MAX_KEYS."""
        now_s, number = self._clock(), key_to_number(key)
        self._cancelled_s[number] = now_s
        self._cancelled_s.move_to_end(number)
        while len(self._cancelled_s) > MAX_KEYS or now_s - next(iter(self._cancelled_s.values())) > REMEMBERED_S:
            self._cancelled_s.popitem(last=False)

    def pop(self, key: str) -> bool:
        """Return whether the request with this key was cancelled before it arrived, and forget the key."""
        cancelled_s = self._cancelled_s.pop(key_to_number(key), None) if key else None
        return cancelled_s is not None and self._clock() - cancelled_s <= REMEMBERED_S
