"""What tests ask about processes that are not their own children, and may end at any moment."""

from __future__ import annotations

import os
import urllib.request
from collections import Counter
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}  # as /proc/net/tcp writes 127.0.0.1, and tcp6
_TCP_STATES = {"01": "established", "06": "time-wait", "08": "close-wait", "0A": "listening"}


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


def memory_bytes(pid: int) -> int:
    """Return the memory that a process has now."""
    lines = _read(pid, "status").decode().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def max_memory_bytes(pid: int) -> int:
    """Return the most memory that a process has ever had."""
    lines = _read(pid, "status").decode().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def listening_addresses(port: int) -> set[str]:
    """Return the addresses of this machine on which a port is open."""
    sockets = (local.split(":") for local, state in _tcp_sockets().values() if state == "listening")
    return {address for address, number in sockets if int(number, 16) == port}


def listening_ports(pid: int) -> set[int]:
    """Return the ports on which a process listens."""
    sockets = _tcp_sockets()
    found = (sockets.get(target, ("", "")) for target in _open_targets(pid))
    return {int(local.partition(":")[2], 16) for local, state in found if state == "listening"}


def open_files(pid: int) -> Counter[str]:
    """Return how many file descriptors of each kind a process has; TCP sockets by their state."""
    sockets = _tcp_sockets()

    def kind(target: str) -> str:
        if target.startswith("socket:"):
            return f"socket {sockets.get(target, ('', 'other'))[1]}"
        return target.partition(":")[0] if ":" in target else "file"

    return Counter(map(kind, _open_targets(pid)))


def num_tasks(url: str) -> int:
    """Return how many tasks a frontend's event loop has; the one that answers this is among them."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return next(int(family.samples[0].value) for family in families if family.name == "conch_tasks")


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # the second when it ends between opening and reading
        return b""


def _tcp_sockets() -> dict[str, tuple[str, str]]:
    """Return the local end and the state of each socket, by the target of a descriptor of it."""
    lines = (line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:])
    fields = map(str.split, lines)
    return {f"socket:[{line[9]}]": (line[1], _TCP_STATES.get(line[3], line[3])) for line in fields}


def _open_targets(pid: int) -> list[str]:
    targets = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            targets.append(os.readlink(link))
        except FileNotFoundError:  # closed meanwhile
            continue
    return targets
