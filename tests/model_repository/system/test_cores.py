"""How many cores a process may use."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from model_repository.system import cores
from model_repository.system.cores import num_cores, num_physical_cores


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, affinity: Iterable[int], quota: str | None = None) -> None:
    """Have this process run on these of eight hardware threads, two to a core: 0 and 4, 1 and 5, ..."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(affinity))
    for number in range(8):
        topology = folder / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{number % 4},{number % 4 + 4}\n")
    monkeypatch.setattr(cores, "_TOPOLOGY", folder)
    monkeypatch.setattr(cores, "_CGROUPS", folder)
    if quota is not None:
        (folder / "cpu.max").write_text(quota)


@pytest.mark.parametrize(
    ("affinity", "quota", "logical", "physical"),
    [
        (range(8), None, 8, 4),
        (range(8), "max 100000\n", 8, 4),
        (range(8), "300000 100000\n", 3, 3),
        (range(8), "250000 100000\n", 3, 3),  # two and a half: the third is busy half of the time
        (range(8), "50000 100000\n", 1, 1),
        (range(8), "6000000 100000\n", 8, 4),
        (range(8), "not what it was\n", 8, 4),
        ([0, 4], None, 2, 1),
        ([2], "100000 100000\n", 1, 1),
    ],
)
def test_affinity_quota_and_topology_count(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    affinity: Iterable[int],
    quota: str | None,
    logical: int,
    physical: int,
) -> None:
    pretend(monkeypatch, tmp_path, affinity, quota)
    assert (num_cores(), num_physical_cores()) == (logical, physical)


def test_without_a_topology_each_thread_is_a_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    monkeypatch.setattr(cores, "_TOPOLOGY", tmp_path)
    assert num_physical_cores() == num_cores()
