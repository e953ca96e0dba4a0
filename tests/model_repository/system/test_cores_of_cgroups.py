"""The limits of real cgroups of version 1, and of version 2 by files in the place of the kernel's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.another_machine import (
    cgroup_of_version_2,
    cgroups_of_version_1,
    has_controllers_of_version_1,
    needs_root,
)

_PRINT = "from model_repository.system.cores import memory_bytes, num_cores; print(num_cores(), memory_bytes())"
_MEMORY_BYTES = 700 << 20

pytestmark = needs_root()


def found(words: tuple[str, ...]) -> list[int]:
    """Return the cores and the memory that a process finds."""
    done = subprocess.run([*words, sys.executable, "-c", _PRINT], capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


@pytest.mark.skipif(not has_controllers_of_version_1(), reason="needs cgroups of version 1")
def test_a_limit_of_a_parent_counts_in_version_1() -> None:
    limits = {"cpu_cfs_quota_us": "50000", "memory_limit_in_bytes": str(_MEMORY_BYTES)}
    with cgroups_of_version_1(f"conch-tests-{os.getpid()}", **limits) as words:
        assert found(words) == [1, _MEMORY_BYTES]


def test_a_limit_of_a_parent_counts_in_version_2(tmp_path: Path) -> None:
    words = cgroup_of_version_2(
        tmp_path, "/system.slice/conch.service/worker", cpu_max="50000 100000\n", memory_max=f"{_MEMORY_BYTES}\n"
    )
    assert found(words) == [1, _MEMORY_BYTES]


def test_in_a_container_the_limit_is_at_the_root_and_the_path_is_that_of_the_host(tmp_path: Path) -> None:
    words = cgroup_of_version_2(tmp_path, "/worker", cpu_max="50000 100000\n", memory_max=f"{_MEMORY_BYTES}\n")
    (tmp_path / "own").write_text("0::/kubepods.slice/pod1/main\n")
    assert found(words) == [1, _MEMORY_BYTES]
