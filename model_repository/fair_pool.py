"""Threads that several senders share: the sender whose work has held them for the shortest time has the next turn."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from model_repository.errors import TooManyWaiting

MAX_WAITING = 100  # pieces of work of one sender
_NICENESS = 10  # threads for work that may wait get a tenth of a contended core


@dataclass(slots=True)
class _Queue:
    """The work of one sender."""

    held_s: float = 0.0  # time for which its work has held threads
    num_begun: int = 0  # pieces that have a thread
    waiting: deque[tuple[Callable[[], None], int]] = field(default_factory=deque)  # pieces and their sizes
    size: int = 0  # sum of the waiting pieces' sizes

    @property
    def is_empty(self) -> bool:
        return not self.num_begun and not self.waiting


class FairPool:
    """Gives the senders that have work equal times of the threads.

    Args:
        num_threads: pieces of work done at the same time.
        kind: plural noun for messages, such as `grammars`.
        num_per_sender: pieces of one sender that are done at the same time.
        max_waiting: one sender's further pieces.
        max_size: the size of these together, in bytes; one piece of any size may wait.
        niceness: of the threads.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        num_threads: int,
        kind: str = "grammars",
        *,
        num_per_sender: int = 1,
        max_waiting: int = MAX_WAITING,
        max_size: int = sys.maxsize,
        niceness: int = _NICENESS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kind = kind
        self._num_threads = num_threads
        self._num_per_sender = num_per_sender
        self._max_waiting = max_waiting
        self._max_size = max_size
        self._clock = clock
        self._threads = ThreadPoolExecutor(num_threads, initializer=_lower_priority, initargs=(niceness,))
        self._num_running = 0  # threads that have work
        self._queues: dict[str, _Queue] = {}
        self._turn_s = 0.0  # `held_s` of the sender with the last turn: a sender that comes has held as much
        self._lock = threading.Lock()

    def submit(self, sender: str, work: Callable[[], None], size: int = 0) -> None:
        """Queue a piece of work, which must not raise.

        Raises:
            TooManyWaiting: the sender has too much work waiting.
            RuntimeError: the pool is closed.
        """
        with self._lock:
            queue = self._queue_of(sender)
            if self._num_running < self._num_threads and queue.num_begun < self._num_per_sender:
                self._threads.submit(self._run, queue, work)  # all other work that waits has its threads
                self._num_running += 1
                self._begin(queue)
                return
            if len(queue.waiting) >= self._max_waiting:
                raise TooManyWaiting(f"{self._max_waiting} {self._kind} of this sender are waiting already")
            if queue.waiting and queue.size + size > self._max_size:
                raise TooManyWaiting(f"{self._max_size} bytes of {self._kind} of this sender are waiting already")
            queue.waiting.append((work, size))
            queue.size += size

    def first_of(self, senders: Collection[str]) -> str:
        """Return the one of several senders whose next piece of work would have the earliest turn."""

        def turn(sender: str) -> tuple[int, float]:
            queue = self._queues.get(sender)
            return (0, self._turn_s) if queue is None else (len(queue.waiting), queue.held_s)

        with self._lock:
            return min(senders, key=turn)

    def close(self) -> None:
        """Finish all work."""
        self._threads.shutdown()

    def _queue_of(self, sender: str) -> _Queue:
        """Return a sender's queue. A sender that comes keeps its debt, but has no credit for time without work."""
        if sender not in self._queues:
            kept = self._queues.items()
            self._queues = {name: each for name, each in kept if not each.is_empty or each.held_s > self._turn_s}
            self._queues[sender] = _Queue()
        queue = self._queues[sender]
        if queue.is_empty:
            queue.held_s = max(queue.held_s, self._turn_s)
        return queue

    def _begin(self, queue: _Queue) -> None:
        queue.num_begun += 1
        self._turn_s = queue.held_s

    def _run(self, queue: _Queue, work: Callable[[], None]) -> None:
        """Do work until none is left that may begin."""
        while True:
            begun_s = self._clock()
            work()
            with self._lock:
                queue.held_s += self._clock() - begun_s
                queue.num_begun -= 1
                able = [
                    each for each in self._queues.values() if each.waiting and each.num_begun < self._num_per_sender
                ]
                if not able:
                    self._num_running -= 1
                    if not self._num_running:
                        self._queues.clear()
                    return
                queue = min(able, key=lambda each: each.held_s)
                work, size = queue.waiting.popleft()
                queue.size -= size
                self._begin(queue)


def _lower_priority(niceness: int) -> None:
    thread = threading.get_native_id()  # threads have priorities of their own on Linux
    os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))
