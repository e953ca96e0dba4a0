"""Recent results of costly work: the completions of one prompt arrive as separate requests."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

MAX_BYTES = 8 << 20


class BoundedCache[Result]:
    """Keeps results by a text of their inputs, for any number of threads, within a number of bytes.

    A text is the key because equal values may differ: 1 and True, or the order of names in an object.

    Args:
        num_bytes: returns the memory of a result.
        lifetime_s: an older result is computed again.
        max_bytes: of all results with their keys; a result of more than an eighth of it is not kept.
    """

    def __init__(
        self,
        num_bytes: Callable[[Result], int],
        lifetime_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._num_bytes_of = num_bytes
        self._lifetime_s = lifetime_s
        self._clock = clock
        self._max_bytes = max_bytes
        self._kept: OrderedDict[bytes, tuple[float, Result, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.num_bytes = 0  # size of all kept results

    def get(self, inputs: object, make: Callable[[], Result]) -> Result:
        """Return the kept result for equal inputs, or make it. Exceptions are not kept.

        Args:
            inputs: everything that the result depends on: plain values, and messages of them.
        """
        try:
            key = msgspec.msgpack.encode(inputs)
        except (RecursionError, OverflowError, UnicodeEncodeError):
            return make()  # nested too deeply, an integer of more than 64 bits, or a lone surrogate
        made_at, result, num_bytes = self._kept.get(key, (-math.inf, None, 0))
        if result is None or self._clock() - made_at > self._lifetime_s:
            result, made_at = make(), self._clock()  # not under the lock, so that other threads continue
            num_bytes = sys.getsizeof(key) + self._num_bytes_of(result)
        if num_bytes <= self._max_bytes // 8:
            self._keep(key, made_at, result, num_bytes)
        return result

    def _keep(self, key: bytes, made_at: float, result: Result, num_bytes: int) -> None:
        with self._lock:
            self.num_bytes += num_bytes - self._kept.pop(key, (0, None, 0))[2]
            self._kept[key] = made_at, result, num_bytes
            while self.num_bytes > self._max_bytes:
                self.num_bytes -= self._kept.popitem(last=False)[1][2]
