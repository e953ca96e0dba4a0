"""Ends every process that a launcher started, also when the launcher itself is killed.

Every child has a mark in its environment, and its own children inherit the mark. So the guard finds processes that have
forked, were detached or were adopted. The launcher runs this file as a program of its own and holds a pipe to it: when
the pipe closes, for any reason, the guard ends the processes with the mark. A killed guard is replaced, and if the
launcher is killed too, the frontend starts another one. Standard library only; Linux only (/proc).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

MARK = "CONCH_LAUNCHER"

_POLL_S = 0.02
_PAUSE_S = 1.0  # wait until a killed guard is replaced
_GRACE_S = 5.0  # from SIGTERM to SIGKILL, of a guard without a launcher
_KILL_WAIT_S = 5.0  # a process inside a driver may outlive SIGKILL


@contextlib.contextmanager
def guarded(held: int, grace_s: float) -> Iterator[str]:
    """Run the guard; yield the mark for the children. Leaving the block ends them.

    Args:
        held: a file descriptor that stays open until all children have ended.
        grace_s: seconds from SIGTERM to SIGKILL.
    """
    mark = secrets.token_hex(8)
    command = _command(mark, grace_s)
    theirs, ours = os.pipe()

    def run() -> None:
        while subprocess.call(command, stdin=theirs, pass_fds=(held,), start_new_session=True) < 0:
            time.sleep(_PAUSE_S)

    thread = threading.Thread(target=run, name="guard")
    thread.start()
    try:
        yield mark
    finally:
        os.close(ours)
        thread.join()
        os.close(theirs)


def stand_in(environment: Mapping[str, str]) -> None:
    """In a child of a launcher, start a guard once the launcher is gone: its own one may be gone too.

    Args:
        environment: of this process; without a mark nothing happens.
    """
    if MARK not in environment:
        return
    launcher, command = os.getppid(), _command(environment[MARK], _GRACE_S)
    unmarked = {name: value for name, value in environment.items() if name != MARK}

    def run() -> None:
        while os.getppid() == launcher:
            time.sleep(_PAUSE_S)
        subprocess.Popen(command, stdin=subprocess.DEVNULL, env=unmarked, start_new_session=True)

    threading.Thread(target=run, name="guard", daemon=True).start()


def _command(mark: str, grace_s: float) -> list[str]:
    return [sys.executable, "-I", "-S", __file__, mark, str(grace_s)]


def end_marked(mark: str, grace_s: float) -> None:
    """Send SIGTERM to every marked process, and SIGKILL after the grace period; free their shared memory."""
    kill_at = time.monotonic() + grace_s
    num_empty_scans, signalled = 0, set[int]()
    # Two empty scans in a row: a process is not visible during exec.
    while num_empty_scans < 2 and time.monotonic() < kill_at + _KILL_WAIT_S:
        is_over = time.monotonic() >= kill_at
        pids = marked_pids(mark)
        for pid in pids if is_over else pids - signalled:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if is_over or _is_deaf(pid) else signal.SIGTERM)
        signalled |= pids
        num_empty_scans = 0 if pids else num_empty_scans + 1
        time.sleep(_POLL_S)
    free_shared_memory(mark)


def free_shared_memory(mark: str) -> None:
    """Free the shared memory of an ended Triton of a launcher."""
    for segment in Path("/dev/shm").glob(f"{shm_prefix(mark)}*"):
        segment.unlink(missing_ok=True)


def marked_pids(mark: str) -> set[int]:
    """Return the live processes with the mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    return {int(folder.name) for folder in Path("/proc").glob("[0-9]*") if wanted in _environment(folder)}


def shm_prefix(mark: str) -> str:
    """Return the prefix of the names of shared memory of a launcher's Triton; a killed Triton does not free it."""
    return f"conch_{mark}_"


def _is_deaf(pid: int) -> bool:
    """Whether a process blocks SIGTERM, as Triton and its stages do."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has ended
        return False
    blocked = next(int(line.split()[1], 16) for line in lines if line.startswith("SigBlk:"))
    return bool(blocked >> (signal.SIGTERM - 1) & 1)


def _environment(folder: Path) -> list[bytes]:
    try:
        return (folder / "environ").read_bytes().split(b"\0")
    except OSError:  # the process has ended, or belongs to another user
        return []


def main(mark: str, grace_s: float) -> None:
    """Wait until the launcher is gone, then end its processes; standard input is the pipe from the launcher."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 1):
        pass
    end_marked(mark, grace_s)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
