"""The number of cores that this process may use: its affinity, within the quota of its container."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # cgroup v2: microseconds of CPU time and of the period; or "max 100000"
_TOPOLOGY = Path("/sys/devices/system/cpu")


def num_cores() -> int:
    """Return the number of logical cores, at least 1."""
    return _within_quota(len(os.sched_getaffinity(0)))


def num_physical_cores() -> int:
    """Return the same without further hardware threads of a core: arithmetic gains nothing by them."""
    return _within_quota(len({_siblings(core) for core in os.sched_getaffinity(0)}))


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
