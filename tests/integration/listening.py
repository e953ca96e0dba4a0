"""The listening sockets of this machine and their processes, from /proc/net."""

from __future__ import annotations

import os
from pathlib import Path

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}  # as /proc/net/tcp writes 127.0.0.1, and tcp6
_LISTENING = "0A"


def listening_addresses(port: int) -> set[str]:
    """Return the addresses of this machine on which a port is open."""
    return {address for address, number, _ in _listeners() if number == port}


def listening_ports(pid: int) -> set[int]:
    """Return the ports on which a process listens."""
    sockets = {os.path.realpath(each).rpartition("/")[2] for each in Path(f"/proc/{pid}/fd").iterdir()}
    return {number for _, number, inode in _listeners() if f"socket:[{inode}]" in sockets}


def _listeners() -> list[tuple[str, int, str]]:
    """Return address, port and inode of each socket that listens."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    listening = [(*line[1].split(":"), line[9]) for line in lines if line[3] == _LISTENING]
    return [(address, int(number, 16), inode) for address, number, inode in listening]
