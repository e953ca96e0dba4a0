"""Ends everything that a launcher started, also when the launcher itself is killed.

Every child carries a mark in its environment, which its own children inherit: whatever forks, detaches or is adopted is
still found. The launcher starts this file as a program of its own and holds a pipe to it: when the pipe closes, for
whatever reason, what still carries the mark is ended. Standard library only; Linux only (/proc).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "CONCH_LAUNCHER"

_POLL_S = 0.02
_KILL_WAIT_S = 5.0  # a process that is stuck in a driver outlives even SIGKILL


@contextlib.contextmanager
def guarded(held: int, grace_s: float) -> Iterator[str]:
    """Run the guard; yield the mark that children must carry. Leaving the block ends them.

    Args:
        held: a file descriptor that stays open until all of them have ended.
        grace_s: from asking them to end to killing them.
    """
    mark = secrets.token_hex(8)
    command = [sys.executable, "-I", "-S", __file__, mark, str(grace_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(held,), start_new_session=True):
        yield mark


def end_marked(mark: str, grace_s: float) -> None:
    """Ask every marked process to end, kill what is left after the grace, and free the shared memory they had."""
    kill_at = time.monotonic() + grace_s
    num_empty_scans, asked = 0, set[int]()
    while num_empty_scans < 2 and time.monotonic() < kill_at + _KILL_WAIT_S:  # two: in the middle of exec it hides
        is_over = time.monotonic() >= kill_at
        pids = marked_pids(mark)
        for pid in pids if is_over else pids - asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if is_over else signal.SIGTERM)
        asked |= pids
        num_empty_scans = 0 if pids else num_empty_scans + 1
        time.sleep(_POLL_S)
    free_shared_memory(mark)


def free_shared_memory(mark: str) -> None:
    """Free what the Triton of a launcher left in shared memory; none may be running."""
    for segment in Path("/dev/shm").glob(f"{shm_prefix(mark)}*"):
        segment.unlink(missing_ok=True)


def marked_pids(mark: str) -> set[int]:
    """Return the live processes whose environment carries the mark."""
    wanted = f"{MARK}={mark}".encode()
    return {int(folder.name) for folder in Path("/proc").glob("[0-9]*") if wanted in _environment(folder)}


def shm_prefix(mark: str) -> str:
    """Return how the names of the shared memory of a launcher's Triton begin; a killed Triton leaves it behind."""
    return f"conch_{mark}_"


def _environment(folder: Path) -> list[bytes]:
    try:
        return (folder / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return []


def main(mark: str, grace_s: float) -> None:
    """Wait until the launcher is gone, then end what it left; standard input is the pipe from it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 1):
        pass
    end_marked(mark, grace_s)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
