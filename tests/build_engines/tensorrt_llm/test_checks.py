"""Checks of a machine before a build."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from build_engines.catalog import Catalog
from build_engines.errors import BuildError
from build_engines.gpus import GPUS
from build_engines.planner.plan import plan
from build_engines.tensorrt_llm import checks
from build_engines.tensorrt_llm.checks import Check, available_ram_bytes, check_gpus, check_room, check_version, gpu_of
from build_engines.tensorrt_llm.recipe import Recipe
from model_repository.system.machine import Machine

PLAN = plan(Catalog.load().find("llama3.1:8b"), GPUS["h100"])
MACHINE = Machine(
    gpu_names=("NVIDIA H100 80GB HBM3",),
    gpu_memory_bytes=81559 << 20,
    gpu_architecture="sm90",
    tensorrt_llm_version="1.2.1",
)
SHORT = 10**9


class Usage(NamedTuple):
    free: int


@pytest.fixture
def plenty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with room for everything."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**15))
    monkeypatch.setattr(checks, "available_ram_bytes", lambda: 10**15)


@pytest.mark.usefixtures("plenty")
def test_a_disk_that_is_too_small_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(SHORT))
    with pytest.raises(BuildError, match=r"disk: .* has 1\.0 GB free, the build writes about 3\d\.\d GB: free some"):
        check_room(tmp_path, tmp_path, Recipe(plan=PLAN), ())
    check_room(tmp_path, tmp_path, Recipe(plan=PLAN), [Check.DISK])


@pytest.mark.usefixtures("plenty")
def test_too_little_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "available_ram_bytes", lambda: SHORT)
    with pytest.raises(BuildError, match=r"memory \(RAM\): 1\.0 GB are available, conversion takes about 19\.\d GB"):
        check_room(tmp_path, tmp_path, Recipe(plan=PLAN), ())
    check_room(tmp_path, tmp_path, Recipe(plan=PLAN), [Check.RAM])


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, 4096_000), ("max\n", 4096_000), ("1000000\n", 900_000), ("9000000\n", 4096_000)]
)
def test_available_memory_is_the_containers(limit: str | None, expected: int, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemFree: 1 kB\nMemAvailable: 4000 kB\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit)
        (tmp_path / "memory.current").write_text("700000\n")
        # Of which 600 kB are files that were read: the kernel gives them up.
        (tmp_path / "memory.stat").write_text("anon 100000\ninactive_file 400000\nactive_file 200000\n")
    assert available_ram_bytes(tmp_path, tmp_path) == expected


@pytest.mark.parametrize("version", [None, "1.2.0", "1.2.10", "1.3.0rc1", "0.21.0"])
def test_only_the_recorded_version_builds(version: str | None) -> None:
    with pytest.raises(BuildError, match=r"use the image|inside the image tritonserver:26\.07"):
        check_version(replace(MACHINE, tensorrt_llm_version=version))


def test_the_gpus_of_the_machine_are_recognized() -> None:
    assert gpu_of(MACHINE) is GPUS["h100"]
    h200 = replace(MACHINE, gpu_names=("NVIDIA H200",) * 8, gpu_memory_bytes=143771 << 20)
    assert gpu_of(h200) is GPUS["h200"]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"gpu_names": ("Tesla T4",)}, "Tesla T4"),
        ({"gpu_names": ("NVIDIA A100-SXM4-40GB",), "gpu_memory_bytes": 40960 << 20}, "NVIDIA A100-SXM4-40GB"),
        ({"gpu_names": ("NVIDIA H100 80GB HBM3", "NVIDIA L40S")}, "NVIDIA H100 80GB HBM3 and NVIDIA L40S"),
        ({"gpu_names": (), "gpu_error": "nvidia-smi: broken"}, r"none \(nvidia-smi: broken\)"),
    ],
)
def test_gpus_that_are_not_planned_for_are_named(changes: dict[str, object], found: str) -> None:
    with pytest.raises(BuildError, match=f"GPU of this machine: {found}: name the one to plan for: --gpu h100"):
        gpu_of(replace(MACHINE, **changes))  # type: ignore[arg-type]


def test_no_gpu_is_not_enough() -> None:
    with pytest.raises(BuildError, match=r"this machine has none \(nvidia-smi: broken\)"):
        check_gpus(PLAN, Machine(gpu_error="nvidia-smi: broken"))


def test_a_smaller_gpu_of_the_same_name_is_refused() -> None:
    smaller = replace(MACHINE, gpu_names=("NVIDIA H100 NVL",), gpu_memory_bytes=47684 << 20)
    with pytest.raises(BuildError, match=r"planned for 1 x H100 of 80\.0 GB .* has 1 x NVIDIA H100 NVL of 50\.0 GB"):
        check_gpus(PLAN, smaller)
