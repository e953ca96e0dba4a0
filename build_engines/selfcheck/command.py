"""Child processes of the self-check: their output is shown as it comes, and kept."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from build_engines.tensorrt_llm.failure import last_lines


def run_shown(arguments: Sequence[str], log: Path, folder: Path | None = None) -> int:
    """Run a module of this Python to its end; show its output, keep it with the times, return its exit status.

    Args:
        arguments: behind the interpreter.
        log: where the output is kept.
        folder: where it runs; None: here.
    """
    command = [sys.executable, "-u", *arguments]
    started = time.monotonic()
    with (
        log.open("w", encoding="utf-8") as kept,
        subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                sys.stderr.write(f"    {line}")
                kept.write(f"[{time.monotonic() - started:8.1f} s] {line}")
        except BaseException:
            process.terminate()  # the block waits for its end
            raise
    return process.returncode


def lines_of(log: Path) -> list[str]:
    """Return the lines of a log of `run_shown` without their times."""
    return [line.partition("] ")[2] for line in log.read_text(encoding="utf-8").splitlines()]


def tail(log: Path) -> list[str]:
    """Return the last lines of a log; none, if there is no log."""
    return last_lines(log.read_text(encoding="utf-8", errors="replace")) if log.is_file() else []
