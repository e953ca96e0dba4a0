"""The last results of costly work: the completions of one prompt arrive as requests of their own."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

MAX_BYTES = 8 << 20  # of one cache; what takes more than an eighth of it is made anew each time


class Recent[Result]:
    """Keeps results by what they were made of, written out; for any number of threads. It holds MAX_BYTES at most.

    A text as the key, since values that are equal need not be the same: 1 and True, or the order of names in an object.

    Args:
        num_bytes: returns how much memory a result takes.
        lifetime_s: after it a result is made anew.
        clock: returns seconds.
    """

    def __init__(
        self,
        num_bytes: Callable[[Result], int],
        lifetime_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._num_bytes_of = num_bytes
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._kept: OrderedDict[str, tuple[float, Result, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.num_bytes = 0  # of all that is kept

    def get(self, made_of: object, make: Callable[[], Result]) -> Result:
        """Return what was made of the same value, or make it. What raises is not kept.

        Args:
            made_of: everything that the result depends on: plain values, and messages of them.
        """
        try:
            key = repr(made_of)
        except RecursionError:
            return make()
        made_at, result, num_bytes = self._kept.get(key, (-math.inf, None, 0))
        if result is None or self._clock() - made_at > self._lifetime_s:
            result, made_at = make(), self._clock()  # without the lock: other threads go on
            num_bytes = sys.getsizeof(key) + self._num_bytes_of(result)
        if num_bytes <= MAX_BYTES // 8:
            self._keep(key, made_at, result, num_bytes)
        return result

    def _keep(self, key: str, made_at: float, result: Result, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes += num_bytes - self._kept.pop(key, (0, None, 0))[2]
            self._kept[key] = made_at, result, num_bytes
            while self.num_bytes > MAX_BYTES:
                self.num_bytes -= self._kept.popitem(last=False)[1][2]
