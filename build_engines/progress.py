"""Progress of long work: one line that is rewritten on a terminal, or a line every half minute in a log."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from model_repository.system.repeating import repeated

logger = logging.getLogger(__name__)

TERMINAL_PERIOD_S = 0.5
LOG_PERIOD_S = 30.0


class Progress:
    """Bytes done of the expected ones, with the speed and the time left, or of an estimate, with the elapsed time."""

    def __init__(
        self, title: str, total_bytes: int, stream: TextIO, clock: Callable[[], float], *, is_estimate: bool = False
    ) -> None:
        """Start at no bytes.

        Args:
            title: the beginning of each line.
            total_bytes: expected; 0: unknown.
            stream: for the line; a terminal or a file.
            clock: seconds.
            is_estimate: there may be more or fewer bytes.
        """
        self._title, self._total_bytes, self._is_estimate = title, total_bytes, is_estimate
        self._stream, self._clock = stream, clock
        self._started = self._shown = clock()
        self._is_terminal = stream.isatty()
        self._done_bytes, self._note = 0, ""
        self._lock = threading.Lock()

    @classmethod
    @contextmanager
    def shown(cls, title: str, total_bytes: int, *, is_estimate: bool = False) -> Iterator[Progress]:
        """Show the progress of the block on stderr."""
        progress = cls(title, total_bytes, sys.stderr, time.monotonic, is_estimate=is_estimate)
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
        elapsed_s = self._clock() - self._started
        done, total = self._done_bytes, self._total_bytes
        unit, divisor = ("GB", 1e9) if max(done, total) >= 1e9 else ("MB", 1e6)
        text = f"{done / divisor:.1f} {unit}"
        if total:
            about = "about " if self._is_estimate else ""
            text = f"{done / divisor:.1f} of {about}{total / divisor:.1f} {unit} ({min(99, 100 * done // total)} %)"
        parts = [f"{self._title}: {text}", self._note]
        if total > done > 0 and elapsed_s > 0 and not self._is_estimate:
            speed = done / elapsed_s
            parts += [f"{speed / 1e6:.1f} MB/s", f"{elapsed_text((total - done) / speed)} left"]
        else:
            parts.append(elapsed_text(elapsed_s))
        return ", ".join(filter(None, parts))


@contextmanager
def following(path: Path, progress: Progress) -> Iterator[None]:
    """Show during the block by how much a file or a folder grows."""
    before, _ = size_of(path)
    with repeated(lambda: progress.set(max(0, size_of(path)[0] - before)), TERMINAL_PERIOD_S):
        yield


def size_of(path: Path) -> tuple[int, int]:
    """Return the size in bytes of a file, or of all files below a folder, and the number of files."""
    sizes = []
    for each in (path, *path.rglob("*")):
        try:
            sizes.append(each.stat().st_size if each.is_file() else None)
        except FileNotFoundError:  # it was renamed
            continue
    files = [size for size in sizes if size is not None]
    return sum(files), len(files)


def elapsed_text(seconds: float) -> str:
    """Format a duration: `1 h 02 min`, `3 min 20 s`, `12 s`."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"
