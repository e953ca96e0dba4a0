"""The cores and the memory that this process may use, within the limits of its container."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # cgroup v2: microseconds of CPU time and of the period; or "max 100000"
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")  # cgroup v2: bytes, or "max"
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
    try:
        limit = _MEMORY_LIMIT.read_text().strip()
        return installed if limit == "max" else min(installed, int(limit))
    except (OSError, ValueError):  # no container, or an older kernel
        return installed


def _within_quota(count: int) -> int:
    try:
        quota_us, period_us = _CPU_QUOTA.read_text().split()
        return count if quota_us == "max" else max(1, min(count, math.ceil(int(quota_us) / int(period_us))))
    except (OSError, ValueError):  # no container, or an older kernel
        return count


def _siblings(core: int) -> str:
    """Return a name of a physical core, the same for each of its hardware threads."""
    try:
        return (_TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list").read_text()
    except OSError:
        return str(core)
