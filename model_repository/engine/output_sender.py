"""A thread that sends output batches, so that no step of the engine waits for Triton."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class OutputSender:
    """Calls functions one after the other in a thread of its own; before `start`, in the caller's.

    Args:
        on_failure: called from that thread with the number of an output stream that could not send.
    """

    def __init__(self, on_failure: Callable[[int], None] = lambda number: None) -> None:
        self.on_failure = on_failure
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._thread = threading.Thread(target=self._run, name="output sender", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, send: Callable[[], None]) -> None:
        """Have a function called. It must not raise."""
        if self._thread.ident is None:
            send()
            return
        self._is_idle.clear()
        self._queue.put(send)

    def wait_until_idle(self, timeout_s: float) -> None:
        """Wait until everything is sent, or the time is up."""
        self._is_idle.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Send everything and end the thread, unless that takes too long."""
        self._queue.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (send := self._queue.get()) is not None:
            send()
            if self._queue.empty():
                self._is_idle.set()
