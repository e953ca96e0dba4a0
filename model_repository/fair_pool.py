"""Threads that several senders share: one sender's work waits behind its own, not ahead of the others'."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from model_repository.errors import TooManyWaiting

MAX_WAITING = 100  # pieces of work of one sender
_NICENESS = 10  # the threads get a tenth of a contended core


class FairPool:
    """Does one piece of work of each sender at a time, and alternates between the senders.

    Args:
        num_threads: the number of senders served at the same time.
        kind: of the work, a plural.
    """

    def __init__(self, num_threads: int, kind: str = "grammars") -> None:
        self._kind = kind
        self._threads = ThreadPoolExecutor(num_threads, initializer=_lower_priority)
        self._waiting: dict[str, deque[Callable[[], None]]] = {}  # by sender, for all senders with work here
        self._lock = threading.Lock()

    def submit(self, sender: str, work: Callable[[], None]) -> None:
        """Queue a piece of work, which must not raise.

        Raises:
            TooManyWaiting: the sender has too many pieces of work waiting.
        """
        with self._lock:
            if (waiting := self._waiting.get(sender)) is not None:
                if len(waiting) >= MAX_WAITING:
                    raise TooManyWaiting(f"{MAX_WAITING} {self._kind} of this sender are waiting already")
                waiting.append(work)
                return
            self._waiting[sender] = deque()
        self._threads.submit(self._run, sender, work)

    def close(self) -> None:
        """Finish all work."""
        self._threads.shutdown()

    def _run(self, sender: str, work: Callable[[], None]) -> None:
        work()
        with self._lock:
            if not self._waiting[sender]:
                del self._waiting[sender]
                return
            following = self._waiting[sender].popleft()
        try:
            self._threads.submit(self._run, sender, following)  # behind the other senders' work
        except RuntimeError:  # the threads are closing
            self._run(sender, following)


def _lower_priority() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)  # on Linux, of the thread
