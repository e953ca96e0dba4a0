"""Another machine for a command: namespaces, cgroups, process 1, a full disk, closed descriptors, blocked signals.

Each is the kernel's own, and replaces no function of ours. Most are the words in front of a command:
`running(folder, "serve", args=[*PROCESS_1, *command])`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

CONTROLLERS = Path("/sys/fs/cgroup")

# A shell has its background commands ignore SIGINT, and a container does not.
_CHILD = ("--fork", "--kill-child", "--mount-proc", "env", "--default-signal")
PROCESS_1 = ("unshare", "--pid", *_CHILD)
CONTAINER = ("unshare", "--pid", "--net", *_CHILD)
WITH_LOOPBACK = ("sh", "-c", 'ip link set lo up && exec "$@"', "sh")  # the network of a container has none yet
CLOSED = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")  # all three standard streams
_BLOCK = (
    "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, {1, 2, 15}); os.execvp(sys.argv[1], sys.argv[1:])"
)
BLOCKED = (sys.executable, "-c", _BLOCK)  # SIGHUP, SIGINT and SIGTERM


@cache
def _why_impossible() -> str:
    if os.geteuid() != 0:
        return "needs root, for another machine"
    done = subprocess.run(["unshare", "--pid", "--net", "--mount", "--fork", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else f"needs root with namespaces, for another machine: {done.stderr.decode()}"


def needs_root() -> pytest.MarkDecorator:
    """Return the mark of a test that only root can run."""
    return pytest.mark.skipif(bool(_why_impossible()), reason=_why_impossible() or "-")


def has_controllers_of_version_1() -> bool:
    """Whether this machine has cgroups of version 1 for processors and memory."""
    return all((CONTROLLERS / name / "cgroup.procs").exists() for name in ("cpu", "memory"))


@contextmanager
def cgroups_of_version_1(name: str, **limits: str) -> Iterator[tuple[str, ...]]:
    """Make cgroups below those of this process, and yield words that put a command into a child of each.

    Args:
        name: of the cgroups.
        limits: by file, such as `cpu_cfs_quota_us` for `cpu.cfs_quota_us`. The child has none of its own.
    """
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    folders = [CONTROLLERS / each / own[each].lstrip("/") / name for each in ("cpu", "memory")]
    try:
        for folder in folders:
            (folder / "child").mkdir(parents=True)
        for file, value in limits.items():
            controller, _, rest = file.partition("_")
            folder = next(each for each in folders if each.is_relative_to(CONTROLLERS / controller))
            (folder / f"{controller}.{rest}").write_text(value)
        joins = " && ".join(f"echo $$ > {folder}/child/cgroup.procs" for folder in folders)
        yield ("sh", "-c", f'{joins} && exec "$@"', "sh")
    finally:
        for folder in folders:
            for each in (folder / "child", folder):
                if each.exists():
                    each.rmdir()


def cgroup_of_version_2(folder: Path, path: str, **limits: str) -> tuple[str, ...]:
    """Return words that show a command a cgroup of version 2, with limits.

    Args:
        folder: for the files that stand in for those of the kernel.
        path: of the command's cgroup.
        limits: of the cgroup above it, by file, such as `cpu_max` for `cpu.max`.
    """
    above = folder / "cgroup" / Path(path.lstrip("/")).parent
    (above / Path(path).name).mkdir(parents=True)
    for file, value in limits.items():
        (above / file.replace("_", ".", 1)).write_text(value)
    (folder / "own").write_text(f"0::{path}\n")
    shown = f"mount --bind {folder}/cgroup /sys/fs/cgroup && mount --bind {folder}/own /proc/$$/cgroup"
    return ("unshare", "--mount", "sh", "-c", f'{shown} && exec "$@"', "sh")


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """Mount a disk of this size on a new folder."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "small", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
