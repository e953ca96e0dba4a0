"""CPU time and memory of processes by name, from the kernel's accounting."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import psutil

_STAGE = re.compile(r"__(tokenizer|engine|detokenizer)/")
_PROGRAMS = {"tritonserver": "tritonserver", "frontend api": "frontend"}  # in command lines, and their names


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process at a moment."""

    name: str
    parent: int
    own_s: float  # CPU time, user and system
    ended_children_s: float  # of children that have ended, and of theirs
    started_at: float  # distinguishes processes with the same id


@dataclass(frozen=True, slots=True)
class Sample:
    """All processes of a server at a moment."""

    time_s: float  # of time.monotonic()
    processes: Mapping[int, ProcessUse]


@dataclass(frozen=True, slots=True)
class Memory:
    """Of the processes of one name. Bytes."""

    num_processes: int
    rss_bytes: int
    pss_bytes: int  # shared pages are divided among their processes, so sums are correct
    largest_rss_bytes: int  # of one process


class Processes:
    """The process trees of a server.

    Args:
        roots: process ids by name. A child has the name of its parent, unless it is a stage, a Triton or a frontend.
    """

    def __init__(self, roots: Mapping[str, int]) -> None:
        self._roots = dict(roots)

    def sample(self) -> Sample:
        """Return the CPU time of every process so far."""
        uses = {}
        for name, process in self._all():
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    uses[process.pid] = ProcessUse(
                        name,
                        process.ppid(),
                        times.user + times.system,
                        times.children_user + times.children_system,
                        process.create_time(),
                    )
            except psutil.NoSuchProcess:
                continue  # it has ended, and its parent has its time
        return Sample(time.monotonic(), uses)

    def memory(self) -> dict[str, Memory]:
        """Return the memory by name."""
        found = defaultdict(list)
        for name, process in self._all():
            try:
                usage = process.memory_full_info()
                found[name].append((usage.rss, usage.pss))
            except psutil.NoSuchProcess:
                continue
        return {
            name: Memory(len(uses), sum(rss for rss, _ in uses), sum(pss for _, pss in uses), max(uses)[0])
            for name, uses in found.items()
        }

    def _all(self) -> Iterator[tuple[str, psutil.Process]]:
        for name, pid in self._roots.items():
            try:
                root = psutil.Process(pid)
                names = {pid: name}
                yield name, root
                for child in root.children(recursive=True):  # parents first
                    names[child.pid] = _name_of(child) or names.get(child.ppid(), name)
                    yield names[child.pid], child
            except psutil.NoSuchProcess:
                continue


def cpu_between(before: Sample, after: Sample) -> dict[str, float]:
    """Return the CPU seconds of each name between two samples, with those of ended children.

    At its end, the whole CPU time of a process is added to its parent's account of ended children. The time before the
    first sample is subtracted, so that no time counts twice.
    """
    used: dict[str, float] = defaultdict(float)
    for pid, use in after.processes.items():
        earlier = before.processes.get(pid)
        if earlier is not None and earlier.started_at == use.started_at:
            used[use.name] += use.own_s - earlier.own_s + use.ended_children_s - earlier.ended_children_s
        else:
            used[use.name] += use.own_s + use.ended_children_s
    for pid, use in before.processes.items():
        later = after.processes.get(pid)
        if later is None or later.started_at != use.started_at:
            heir = _heir(use, before, after)
            if heir is not None:
                used[heir.name] -= use.own_s + use.ended_children_s
    return dict(used)


def _heir(use: ProcessUse, before: Sample, after: Sample) -> ProcessUse | None:
    """Return the nearest living ancestor, which has the account of an ended process."""
    parent = use.parent
    while parent not in after.processes and parent in before.processes:
        parent = before.processes[parent].parent
    return after.processes.get(parent)


def _name_of(process: psutil.Process) -> str:
    """Return the stage or the server that a process runs; empty for other processes."""
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return ""
    if "stub" in command:
        found = _STAGE.search(command)
        return found[1] if found else ""
    return next((name for part, name in _PROGRAMS.items() if part in command), "")
