"""What must be true of this machine before hours are spent on a build."""

from __future__ import annotations

import shutil
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.gpus import GPUS, Gpu
from build_engines.planner.sizing import Plan
from model_repository.machine import Machine

TARGET_VERSION = "1.2.1"
IMAGE = "tritonserver:26.07-trtllm-python-py3"  # the newest that carries it

_SHARE_OF_MEMORY = 0.95  # of what is sold; a variant of the same name with less is another GPU


class Check(StrEnum):
    """What may be skipped, since it rests on estimates."""

    DISK = "disk"
    RAM = "ram"


def engine_requires(plan: Plan, version: str) -> dict[str, str]:
    """Return what an engine requires of a machine: it runs where it could have been built."""
    return {
        "tensorrt_llm": version,
        "gpu_architecture": plan.gpu.architecture,
        "num_gpus": str(plan.parallelism.num_gpus_per_node),
    }


def checkpoint_requires(plan: Plan) -> dict[str, str]:
    """Return what a checkpoint requires of a machine, which compiles nothing: its memory."""
    return {"num_gpus": str(plan.parallelism.num_gpus_per_node)}


def gpu_of(machine: Machine) -> Gpu:
    """Return the kind of GPU that this machine has.

    Raises:
        BuildError: it has none, or one that is not planned for.
    """
    for gpu in GPUS.values():
        if _is_of_kind(machine, gpu):
            return gpu
    found = " and ".join(sorted(set(machine.gpu_names))) or f"none ({machine.gpu_error})"
    raise BuildError(f"GPU of this machine: {found}: name the one to plan for: --gpu {'|'.join(GPUS)}")


def check_version(machine: Machine) -> str:
    """Return the version of TensorRT-LLM, which is one whose commands are known here.

    Raises:
        BuildError: it is not installed, or another one.
    """
    version = machine.tensorrt_llm_version
    if version is None:
        raise BuildError(f"TensorRT-LLM is not installed: build inside the image {IMAGE}, which has {TARGET_VERSION}")
    if version.split("+")[0] != TARGET_VERSION:
        rule = f"builds are made for {TARGET_VERSION}, the last with engines: use the image {IMAGE}"
        raise BuildError(f"TensorRT-LLM {version}: {rule}")
    return version


def check_gpus(plan: Plan, machine: Machine) -> None:
    """Check that the GPUs are those of the plan.

    Raises:
        BuildError: says which are here and which were planned.
    """
    num_gpus = plan.parallelism.num_gpus_per_node
    planned = f"{plan.entry.model_id} is planned for {num_gpus} x {plan.gpu.name} of {_gb(plan.gpu.memory_bytes)}"
    if not machine.gpu_names:
        raise BuildError(f"{planned} in each node, this machine has none ({machine.gpu_error})")
    if not _is_of_kind(machine, plan.gpu) or machine.num_gpus < num_gpus:
        names = " and ".join(sorted(set(machine.gpu_names)))
        found = f"{machine.num_gpus} x {names} of {_gb(machine.gpu_memory_bytes)}"
        raise BuildError(f"{planned} in each node, this machine has {found}: --gpu and --gpus say what to plan for")


def check_room(work_dir: Path, artifacts_dir: Path, plan: Plan, skipped: Collection[Check]) -> None:
    """Check that disk and memory are enough for what is to come.

    Raises:
        BuildError: says how much there is, and how much it takes.
    """
    if Check.DISK not in skipped:
        # The converted checkpoint and the engine; the artifact shares the engine's bytes on the same file system.
        needed = 2 * plan.engine_bytes
        if work_dir.stat().st_dev != artifacts_dir.stat().st_dev:
            _check_disk(artifacts_dir, plan.engine_bytes, "--state-dir")
        _check_disk(work_dir, needed, "--work-dir")
    if Check.RAM not in skipped:
        available = available_ram_bytes()
        if available < plan.build_ram_bytes:
            raise BuildError(
                f"memory (RAM): {_gb(available)} are available, conversion takes about {_gb(plan.build_ram_bytes)}: "
                "use a larger machine, or --skip-check ram if you know better"
            )


def available_ram_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return what processes can still take: of the machine, and of the container's own limit."""
    lines = (line.split() for line in (proc / "meminfo").read_text(encoding="ascii").splitlines())
    available = next(int(line[1]) * 1024 for line in lines if line[0] == "MemAvailable:")
    try:
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines())
        # Files that were read, as a checkpoint for its digests, count as used; the kernel gives them up when asked.
        used -= int(statistics["inactive_file"]) + int(statistics["active_file"])
    except (OSError, ValueError, KeyError):  # no limit, which reads `max`, or an older kernel
        return available
    return min(available, limit - used)


def _check_disk(folder: Path, needed_bytes: int, flag: str) -> None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise BuildError(
            f"disk: {folder} has {_gb(free_bytes)} free, the build writes about {_gb(needed_bytes)}: "
            f"free some, name another {flag}, or --skip-check disk if you know better"
        )


def _is_of_kind(machine: Machine, gpu: Gpu) -> bool:
    return (
        bool(machine.gpu_names)
        and all(gpu.name in name for name in machine.gpu_names)
        and machine.gpu_memory_bytes >= _SHARE_OF_MEMORY * gpu.memory_bytes
    )


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f} GB"
