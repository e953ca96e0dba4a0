"""How many cores this process may use: what its affinity allows, within the quota of its container."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CPU_QUOTA = Path(
    "/sys/fs/cgroup/cpu.max"
)  # of a container, in cgroup v2: "max 100000", or microseconds of each so many
_TOPOLOGY = Path("/sys/devices/system/cpu")


def num_cores() -> int:
    """Return how many logical cores may be busy at a time, at least 1."""
    return _within_quota(len(os.sched_getaffinity(0)))


def num_physical_cores() -> int:
    """Return the same, with the hardware threads of one core counted once: arithmetic gains nothing by the others."""
    return _within_quota(len({_siblings(core) for core in os.sched_getaffinity(0)}))


def _within_quota(count: int) -> int:
    try:
        quota_us, period_us = _CPU_QUOTA.read_text().split()
        return count if quota_us == "max" else max(1, min(count, math.ceil(int(quota_us) / int(period_us))))
    except (OSError, ValueError):  # no container, or an older kernel's
        return count


def _siblings(core: int) -> str:
    """Return what names a physical core, the same for each of its hardware threads."""
    try:
        return (_TOPOLOGY / f"cpu{core}" / "topology" / "thread_siblings_list").read_text()
    except OSError:
        return str(core)
