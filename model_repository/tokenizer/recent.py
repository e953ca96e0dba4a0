"""The last few results of costly work: the completions of one prompt arrive as requests of their own."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

SIZE = 8
MAX_KEY_CHARS = 250_000  # what is made of a larger one may be large too: it is made anew each time


class Recent[Result]:
    """Keeps results by what they were made of, written out; for any number of threads.

    A text as the key, since values that are equal need not be the same: 1 and True, or the order of names in an object.

    Args:
        lifetime_s: after it a result is made anew.
        clock: returns seconds.
    """

    def __init__(self, lifetime_s: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, Result]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, made_of: object, make: Callable[[], Result]) -> Result:
        """Return what was made of the same value, or make it. What raises is not kept.

        Args:
            made_of: everything that the result depends on: plain values, and dataclasses of them.
            make: makes the result.
        """
        try:
            key = repr(made_of)
        except RecursionError:
            return make()
        if len(key) > MAX_KEY_CHARS:
            return make()
        made_at, result = self._kept.get(key, (-math.inf, None))
        if result is None or self._clock() - made_at > self._lifetime_s:
            result, made_at = make(), self._clock()
        with self._lock:  # not while it is made: other threads go on
            self._kept[key] = made_at, result
            self._kept.move_to_end(key)
            if len(self._kept) > SIZE:
                self._kept.popitem(last=False)
        return result
