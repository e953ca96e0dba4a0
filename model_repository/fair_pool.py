"""Threads that several senders share: one sender's work waits behind its own, not ahead of the others'."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from model_repository.errors import TooManyWaiting

MAX_WAITING = 100  # pieces of work of one sender
_NICENESS = 10  # threads for work that may wait get a tenth of a contended core


@dataclass(slots=True)
class _Queue:
    """The work of one sender."""

    num_begun: int = 0  # pieces that have a thread, or are next to get one
    waiting: deque[tuple[Callable[[], None], int]] = field(default_factory=deque)  # pieces and their sizes
    size: int = 0  # sum of the waiting pieces' sizes


class FairPool:
    """Alternates between the senders' pieces of work.

    Args:
        num_threads: pieces of work done at the same time.
        kind: plural noun for messages, such as `grammars`.
        num_per_sender: pieces of one sender that are done at the same time.
        max_waiting: the size of one sender's further pieces, all together.
        niceness: of the threads.
    """

    def __init__(
        self,
        num_threads: int,
        kind: str = "grammars",
        *,
        num_per_sender: int = 1,
        max_waiting: int = MAX_WAITING,
        niceness: int = _NICENESS,
    ) -> None:
        self._kind = kind
        self._num_per_sender = num_per_sender
        self._max_waiting = max_waiting
        self._threads = ThreadPoolExecutor(num_threads, initializer=_lower_priority, initargs=(niceness,))
        self._queues: dict[str, _Queue] = {}  # senders with work here
        self._lock = threading.Lock()

    def submit(self, sender: str, work: Callable[[], None], size: int = 1) -> None:
        """Queue a piece of work, which must not raise.

        Raises:
            TooManyWaiting: the sender has too much work waiting.
        """
        with self._lock:
            queue = self._queues.setdefault(sender, _Queue())
            if queue.num_begun >= self._num_per_sender:
                if queue.size + size > self._max_waiting:
                    raise TooManyWaiting(f"{self._max_waiting} {self._kind} of this sender are waiting already")
                queue.waiting.append((work, size))
                queue.size += size
                return
            queue.num_begun += 1
        self._threads.submit(self._run, sender, work)

    def close(self) -> None:
        """Finish all work."""
        self._threads.shutdown()

    def _run(self, sender: str, work: Callable[[], None]) -> None:
        work()
        while (following := self._following(sender)) is not None:
            try:
                self._threads.submit(self._run, sender, following)  # queues behind the other senders' work
                return
            except RuntimeError:  # the threads are closing
                following()

    def _following(self, sender: str) -> Callable[[], None] | None:
        """Return the next piece of a sender, one of whose pieces is done; None: nothing waits."""
        with self._lock:
            queue = self._queues[sender]
            if not queue.waiting:
                queue.num_begun -= 1
                if not queue.num_begun:
                    del self._queues[sender]
                return None
            following, size = queue.waiting.popleft()
            queue.size -= size
            return following


def _lower_priority(niceness: int) -> None:
    thread = threading.get_native_id()  # threads have priorities of their own on Linux
    os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))
