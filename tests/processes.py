"""What tests ask about processes that are not their own children, and may end at any moment."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended: one that nobody has waited for yet has."""
    status = _read(pid, "status")
    return status != b"" and b"\nState:\tZ" not in status


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal, and goes on at another."""
    return b"\nState:\tT" in _read(pid, "status")


def parent_of(pid: int) -> int:
    """Return the process id of the parent; 0 of a process that has ended."""
    stat = _read(pid, "stat").rpartition(b") ")[2].split()  # see proc(5): field 3 and the following ones
    return int(stat[1]) if stat else 0


def command_line(pid: int) -> bytes:
    """Return its words, each with a NUL after it; none of one that has ended."""
    return _read(pid, "cmdline")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # the second when it ends between opening and reading
        return b""
