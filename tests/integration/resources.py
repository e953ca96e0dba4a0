"""Counts of a process: file descriptors, memory, tasks. Tests compare them before and after to find leaks."""

from __future__ import annotations

import os
import urllib.request
from collections import Counter
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

_TCP_STATES = {"01": "established", "06": "time-wait", "08": "close-wait", "0A": "listening"}


def open_files(pid: int) -> Counter[str]:
    """Return how many file descriptors of each kind a process has; TCP sockets by their state."""
    states = {
        fields[9]: _TCP_STATES.get(fields[3], fields[3])
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        if (fields := line.split())
    }
    return Counter(_kind(target, states) for target in _targets(pid))


def max_memory_bytes(pid: int) -> int:
    """Return the most memory that a process has ever had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def num_tasks(url: str) -> int:
    """Return how many tasks a frontend's event loop has; the one that answers this is among them."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        return next(int(family.samples[0].value) for family in families if family.name == "conch_tasks")


def _targets(pid: int) -> list[str]:
    targets = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            targets.append(os.readlink(link))
        except FileNotFoundError:  # closed meanwhile
            continue
    return targets


def _kind(target: str, states: dict[str, str]) -> str:
    if target.startswith("socket:["):
        return f"socket {states.get(target.removeprefix('socket:[').removesuffix(']'), 'other')}"
    return target.partition(":")[0] if ":" in target else "file"
