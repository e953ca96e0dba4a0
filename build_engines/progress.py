"""Progress of long work: one line that is rewritten on a terminal, or a line every half minute in a log."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tqdm import tqdm

from model_repository.system.repeating import repeated
from model_repository.system.terminal_text import escaped, unescaped

logger = logging.getLogger(__name__)

TERMINAL_PERIOD_S = 0.5
LOG_PERIOD_S = 30.0


class Progress(tqdm):  # type: ignore[misc]
    """A context with the bytes done of the expected ones, the elapsed time and the speed, on stderr.

    Args:
        title: the beginning of each line.
        total_bytes: expected; 0: unknown.
        is_estimate: there may be more or fewer bytes, so the time left is not shown.
    """

    monitor_interval = 0  # no thread

    def __init__(self, title: str, total_bytes: int, *, is_estimate: bool = False) -> None:
        self._is_logged = not sys.stderr.isatty()
        period_s = LOG_PERIOD_S if self._is_logged else TERMINAL_PERIOD_S
        super().__init__(
            desc=escaped(title),
            total=total_bytes or None,
            unit="B",
            unit_scale=True,
            bar_format="{l_bar}{bar}| {n_fmt} of about {total_fmt} [{elapsed}{postfix}]" if is_estimate else None,
            leave=False,
            miniters=0,
            mininterval=period_s,
            delay=period_s,
            file=io.StringIO() if self._is_logged else unescaped(sys.stderr),
        )

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        if not self._is_logged:
            super().display(msg, pos)
        elif msg is None:
            logger.info("%s", str(self))
        return True  # a line was written: at the end the cursor goes back

    def set(self, done_bytes: int, note: str = "", total_bytes: int | None = None) -> None:
        """Set the number of bytes, a note behind them, and the expected number if it was unknown before."""
        self.postfix = escaped(note)
        if total_bytes is not None:
            self.total = total_bytes
        self.update(done_bytes - self.n)


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


def size_text(num_bytes: int) -> str:
    """Format a size: `1.5 GB`, `98.1 MB`."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def elapsed_text(seconds: float) -> str:
    """Format a duration: `1 h 02 min`, `3 min 20 s`, `12 s`."""
    whole = int(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 60} min {whole % 60:02} s" if whole >= 60 else f"{whole} s"
