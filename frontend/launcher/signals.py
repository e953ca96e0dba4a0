"""Signals that end `serve`, in a thread that waits for them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock, Thread
from types import FrameType
from typing import Any, Self

from model_repository.system.process_start import ENDING_SIGNALS

WAKE = signal.SIGURG  # sent to the main thread: a signal that another thread has got does not wake it


class EndingSignals:
    """Calls a function at each signal that would end the program; a context manager of the main thread.

    A Python handler would run when the main thread wakes. A signal to a stopped process does not always wake it.
    """

    def __init__(self) -> None:
        self._last = 0  # the number of the last signal
        self._function: Callable[[int], None] = lambda number: None
        self._lock = Lock()
        self._thread = Thread(target=self._wait, name="signals", daemon=True)

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe()  # a byte for each signal: its number
        os.set_blocking(self._write, False)
        self._fd_before = signal.set_wakeup_fd(self._write)
        self._before = {number: signal.signal(number, lambda *_: None) for number in (*ENDING_SIGNALS, WAKE)}
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        os.close(self._write)
        self._thread.join()
        os.close(self._read)

    @property
    def has_come(self) -> bool:
        """Whether there was a signal."""
        return self._last > 0

    def call(self, function: Callable[[int], None]) -> None:
        """From now on call this function with the number of each signal; at once, if there was a signal before.

        Another thread calls it later.
        """
        with self._lock:
            self._function = function
            if self._last:
                function(self._last)

    @contextmanager
    def handled(self, handlers: Mapping[signal.Signals, Callable[[int, FrameType | None], Any]]) -> Iterator[None]:
        """During the block, have the main thread run these handlers, and call no function."""
        main_thread = threading.get_ident()
        self.call(lambda number: signal.pthread_kill(main_thread, WAKE))
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            if self.has_come:
                os.kill(os.getpid(), self._last)  # nothing has handled it here
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _wait(self) -> None:
        while received := os.read(self._read, 1):
            number = received[0]
            if number not in ENDING_SIGNALS or (number == signal.SIGHUP and self.has_come):
                continue  # a terminal that closes sends SIGHUP, and its shell once more
            with self._lock:
                self._last = number
                self._function(number)
