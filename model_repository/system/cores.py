"""The cores and the memory that this process may use, within the limits of its container."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_TOPOLOGY = Path("/sys/devices/system/cpu")


def num_cores() -> int:
    """Return the number of logical cores, at least 1."""
    return _within_quota(len(os.sched_getaffinity(0)))


def num_physical_cores() -> int:
    """Return the same without further hardware threads of a core: arithmetic gains nothing by them."""
    return _within_quota(len({_siblings(core) for core in os.sched_getaffinity(0)}))


def memory_bytes() -> int:
    """Return the size of the memory."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    names = ("memory.max", "memory.limit_in_bytes")  # of versions 2 and 1
    limits = (_text_of(folder / name) for folder in _cgroups("memory") for name in names)
    return min([installed, *(int(limit) for limit in limits if limit.isdecimal())])


def _within_quota(count: int) -> int:
    for folder in _cgroups("cpu"):
        # Microseconds of CPU time and of the period: of version 2, which writes "max" for no limit, and of version 1.
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            match [int(word) for name in names for word in _text_of(folder / name).split() if word.isdecimal()]:
                case [quota_us, period_us] if period_us:
                    count = min(count, math.ceil(quota_us / period_us))
    return max(1, count)


def _cgroups(controller: str) -> Iterator[Path]:
    """Yield the folders of the cgroups of this process and of their parents: each may have a limit.

    A container may see its own cgroup at the root, and the path to it from outside: then the path is missing.
    """
    for line in (_text_of(_OWN_CGROUPS) or "0::/").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or controller in controllers.split(","):
            root, own = _CGROUPS / (controller if controllers else ""), Path(path.lstrip("/"))
            yield from (root / folder for folder in (own, *own.parents))


def _text_of(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # no such limit, or no cgroups
        return ""


def _siblings(core: int) -> str:
    """Return a name of a physical core, the same for each of its hardware threads."""
    try:
        return (_TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list").read_text()
    except OSError:
        return str(core)
