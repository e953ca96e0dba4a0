"""Progress of long work: one line that is rewritten on a terminal, or a line every half minute in a log."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

logger = logging.getLogger(__name__)

TERMINAL_PERIOD_S = 0.5
LOG_PERIOD_S = 30.0


class Progress:
    """Bytes done of the expected ones, and the elapsed time."""

    def __init__(self, title: str, total_bytes: int, stream: TextIO, clock: Callable[[], float]) -> None:
        """Start at no bytes.

        Args:
            title: the beginning of each line.
            total_bytes: expected; 0: unknown.
            stream: for the line; a terminal or a file.
            clock: seconds.
        """
        self._title, self._total_bytes = title, total_bytes
        self._stream, self._clock = stream, clock
        self._started = self._shown = clock()
        self._is_terminal = stream.isatty()
        self._done_bytes, self._note = 0, ""
        self._lock = threading.Lock()

    @classmethod
    @contextmanager
    def shown(cls, title: str, total_bytes: int) -> Iterator[Progress]:
        """Show the progress of the block on stderr."""
        progress = cls(title, total_bytes, sys.stderr, time.monotonic)
        try:
            yield progress
        finally:
            progress.clear()

    def add(self, num_bytes: int) -> None:
        """Add bytes; for any thread."""
        with self._lock:
            self.set(self._done_bytes + num_bytes)

    def set(self, done_bytes: int, note: str = "", total_bytes: int | None = None) -> None:
        """Set the number of bytes. The line is shown once in a period.

        Args:
            done_bytes: in all.
            note: shown behind the bytes.
            total_bytes: expected, if it was unknown before.
        """
        self._done_bytes, self._note = done_bytes, note
        if total_bytes is not None:
            self._total_bytes = total_bytes
        now = self._clock()
        if now - self._shown < (TERMINAL_PERIOD_S if self._is_terminal else LOG_PERIOD_S):
            return
        self._shown = now
        if self._is_terminal:
            self._stream.write(f"\r\x1b[K{self.line()}")
            self._stream.flush()
        else:
            logger.info("%s", self.line())

    def clear(self) -> None:
        """Remove the line from a terminal."""
        if self._is_terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def line(self) -> str:
        """Return the line."""
        done = f"{_gigabytes(self._done_bytes)} GB"
        if self._total_bytes:
            percent = min(99, 100 * self._done_bytes // self._total_bytes)
            done = f"{_gigabytes(self._done_bytes)} of about {_gigabytes(self._total_bytes)} GB ({percent} %)"
        parts = (f"{self._title}: {done}", self._note, elapsed_text(self._clock() - self._started))
        return ", ".join(part for part in parts if part)


def elapsed_text(seconds: float) -> str:
    """Format a duration: `1 h 02 min`, `3 min 20 s`, `12 s`."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f}"
