"""Threads that compute masks beside the steps, so that no step waits for a slow one."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Protocol

from model_repository.fair_pool import FairPool
from model_repository.system.cores import num_cores

# A step waits for quick masks: most take less time than another step without their sequences.
MAX_WAIT_S = 0.005
_SLOW_S = 0.002  # processor time
_NO_LIMIT = 1 << 30  # a sequence has at most one mask waiting


class Masked(Protocol):
    """A sequence whose next token needs a mask."""

    mask_s: float  # processor time of its last mask
    computing: Computing | None

    @property
    def sender(self) -> str: ...

    def compute_mask(self) -> None:
        """Compute the mask of the next token. It must not raise."""


class Computing:
    """Masks that a thread computes, until `is_done`."""

    def __init__(self, *, may_wait: bool) -> None:
        self.done = threading.Event()
        self.is_late = not may_wait  # no step waits for it any more

    def is_done(self, deadline_s: float) -> bool:
        """Whether the masks are computed. Wait for them until a deadline, once."""
        if not self.is_late and not self.done.wait(max(0.0, deadline_s - time.monotonic())):
            self.is_late = True
        return self.done.is_set()


class MaskThreads:
    """Computes masks in turns between senders: one mask of a sender at a time.

    A sequence is slow if its last mask was. Slow ones have threads of their own, which may wait: they get a tenth of
    a contended core.

    Args:
        on_late: called when masks are computed for which a step did not wait.
    """

    def __init__(self, on_late: Callable[[], None]) -> None:
        self._on_late = on_late
        num_threads = max(2, num_cores())
        self._quick = FairPool(num_threads, "masks", max_waiting=_NO_LIMIT, niceness=0)
        self._slow = FairPool(num_threads, "masks", max_waiting=_NO_LIMIT)

    def compute(self, sequences: Iterable[Masked]) -> None:
        """Begin to compute the next masks of sequences."""
        quick: dict[str, list[Masked]] = defaultdict(list)
        for each in sequences:
            if each.mask_s > _SLOW_S:
                self._submit(self._slow, each.sender, [each], may_wait=False)
            else:
                quick[each.sender].append(each)
        for sender, group in quick.items():
            self._submit(self._quick, sender, group, may_wait=True)

    def close(self) -> None:
        """End the threads, when all masks are computed."""
        self._quick.close()
        self._slow.close()

    def _submit(self, threads: FairPool, sender: str, group: list[Masked], *, may_wait: bool) -> None:
        computing = Computing(may_wait=may_wait)

        def compute() -> None:
            for each in group:
                started_s = time.thread_time()
                each.compute_mask()
                each.mask_s = time.thread_time() - started_s
            computing.done.set()
            if computing.is_late:
                self._on_late()

        for each in group:
            each.computing = computing
        threads.submit(sender, compute)
