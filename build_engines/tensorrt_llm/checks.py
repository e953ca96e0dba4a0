"""Checks of this machine before a build, which can take hours."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.gpus import GPUS, Gpu
from build_engines.planner.memory import gigabytes
from build_engines.planner.sizing import Plan
from build_engines.tensorrt_llm.recipe import Recipe
from model_repository.engine.tensorrt_llm.releases import ENGINE_RELEASE
from model_repository.system.machine import Machine

TARGET_VERSION = ENGINE_RELEASE.version
IMAGE = "tritonserver:26.07-trtllm-python-py3"  # the newest image with it

_SHARE_OF_MEMORY = 0.95  # part of the nominal memory; a GPU with less is another variant


class Check(StrEnum):
    """The checks of estimates, which can be skipped."""

    DISK = "disk"
    RAM = "ram"


def machine_requires(plan: Plan, version: str | None) -> dict[str, str]:
    """Return the requirements of an artifact: enough GPUs, and for an engine a machine that could have built it.

    Args:
        version: of the TensorRT-LLM that compiles the engine; None: nothing is compiled.
    """
    of_engine = {} if version is None else {"tensorrt_llm": version, "gpu_architecture": plan.gpu.architecture}
    return of_engine | {"num_gpus": str(plan.parallelism.num_gpus_per_node)}


def gpu_of(machine: Machine) -> Gpu:
    """Return the kind of GPU of this machine.

    Raises:
        BuildError: no GPU, or an unknown kind.
    """
    for gpu in GPUS.values():
        if _is_of_kind(machine, gpu):
            return gpu
    found = " and ".join(sorted(set(machine.gpu_names))) or f"none ({machine.gpu_error})"
    raise BuildError(f"GPU of this machine: {found}: name the one to plan for: --gpu {'|'.join(GPUS)}")


def check_version(machine: Machine) -> str:
    """Return the version of TensorRT-LLM.

    Raises:
        BuildError: it is not installed, or not a supported version.
    """
    version = machine.tensorrt_llm_version
    if version is None:
        raise BuildError(f"TensorRT-LLM is not installed: build inside the image {IMAGE}, which has {TARGET_VERSION}")
    if version.split("+")[0] != TARGET_VERSION:
        rule = f"builds are made for {TARGET_VERSION}, the last with engines: use the image {IMAGE}"
        raise BuildError(f"TensorRT-LLM {version}: {rule}")
    return version


def check_gpus(plan: Plan, machine: Machine) -> None:
    """Check that this machine has the GPUs of the plan.

    Raises:
        BuildError: names the GPUs of the machine and of the plan.
    """
    num_gpus = plan.parallelism.num_gpus_per_node
    planned = f"{plan.entry.model_id} is planned for {num_gpus} x {plan.gpu.name} of {gigabytes(plan.gpu.memory_bytes)}"
    if not machine.gpu_names:
        raise BuildError(f"{planned} in each node, this machine has none ({machine.gpu_error})")
    if not _is_of_kind(machine, plan.gpu) or machine.num_gpus < num_gpus:
        names = " and ".join(sorted(set(machine.gpu_names)))
        found = f"{machine.num_gpus} x {names} of {gigabytes(machine.gpu_memory_bytes)}"
        raise BuildError(f"{planned} in each node, this machine has {found}: --gpu and --gpus say what to plan for")


def check_room(work_dir: Path, artifacts_dir: Path, recipe: Recipe, skipped: Collection[Check]) -> None:
    """Check that disk and memory are enough for the build.

    Raises:
        BuildError: names the available and the necessary size.
    """
    if Check.DISK not in skipped:
        # The converted checkpoint and the engine. On the same file system, the artifact shares the engine's bytes.
        needed = 2 * recipe.plan.engine_bytes
        if work_dir.stat().st_dev != artifacts_dir.stat().st_dev:
            _check_disk(artifacts_dir, recipe.plan.engine_bytes, "--home")
        _check_disk(work_dir, needed, "--work-dir")
    if Check.RAM not in skipped:
        available = available_ram_bytes()
        if available < recipe.ram_bytes:
            raise BuildError(
                f"memory (RAM): {gigabytes(available)} are available, conversion takes about "
                f"{gigabytes(recipe.ram_bytes)}: "
                "use fewer --workers, a larger machine, or --skip-check ram if you know better"
            )


def available_ram_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the available memory, of the machine and of the container's limit."""
    lines = (line.split() for line in (proc / "meminfo").read_text(encoding="ascii").splitlines())
    available = next(int(line[1]) * 1024 for line in lines if line[0] == "MemAvailable:")
    try:
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines())
        # Cached files count as used, but the kernel can free them.
        used -= int(statistics["inactive_file"]) + int(statistics["active_file"])
    except (OSError, ValueError, KeyError):  # no limit (the text `max`), or an older kernel
        return available
    return min(available, limit - used)


def _check_disk(folder: Path, needed_bytes: int, flag: str) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise BuildError(
            f"disk: {folder} has {gigabytes(free_bytes)} free, the build writes about {gigabytes(needed_bytes)}: "
            f"free some, name another {flag}, or --skip-check disk if you know better"
        )


def _is_of_kind(machine: Machine, gpu: Gpu) -> bool:
    return (
        bool(machine.gpu_names)
        and all(gpu.name in name for name in machine.gpu_names)
        and machine.gpu_memory_bytes >= _SHARE_OF_MEMORY * gpu.memory_bytes
    )
