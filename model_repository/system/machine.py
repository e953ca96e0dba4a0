"""The GPUs and the TensorRT-LLM of this machine, compared with the needs of an artifact."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass

_QUERY = ("--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits")
_TIMEOUT_S = 60.0  # a driver that wakes eight GPUs takes several seconds
_BYTES_PER_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The GPUs that this process may use, and the TensorRT-LLM that it would import."""

    gpu_names: tuple[str, ...] = ()
    gpu_memory_bytes: int = 0  # the smallest GPU's; 0 without one
    gpu_architecture: str | None = None  # "sm90"; for different GPUs all of them: "sm80 and sm90"
    tensorrt_llm_version: str | None = None  # None: not installed
    gpu_error: str | None = None  # why nvidia-smi failed

    @property
    def num_gpus(self) -> int:
        return len(self.gpu_names)


def read_machine(environment: Mapping[str, str] = os.environ) -> Machine:
    """Ask nvidia-smi and the installed package; this creates no CUDA context."""
    version = installed_version("tensorrt_llm")
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return Machine(tensorrt_llm_version=version, gpu_error=f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU")
    try:
        rows = _query_gpus(visible)
    except (OSError, ValueError, subprocess.SubprocessError) as exc:
        return Machine(tensorrt_llm_version=version, gpu_error=f"nvidia-smi: {str(exc).partition('\n')[0]}")
    return Machine(
        gpu_names=tuple(name for name, _, _ in rows),
        gpu_memory_bytes=min((memory_bytes for _, memory_bytes, _ in rows), default=0),
        gpu_architecture=" and ".join(sorted({architecture for _, _, architecture in rows})) or None,
        tensorrt_llm_version=version,
    )


def show_only(gpus: Sequence[int], environment: MutableMapping[str, str]) -> None:
    """Hide all other GPUs from this process and its children. The numbers count the GPUs that are visible now.

    Raises:
        IndexError: a number is too large.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    names = [str(gpu) for gpu in gpus] if visible is None else [visible.split(",")[gpu] for gpu in gpus]
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(names)


def why_unfit(requires: Mapping[str, str], machine: Machine) -> str | None:
    """Return in one line why an artifact cannot run here, and the remedy; None if it can run.

    Args:
        requires: an artifact's: `tensorrt_llm` (version), `gpu_architecture`, `num_gpus` (on each node).
    """
    for name, value in requires.items():
        if name not in NEEDS:
            return f"needs {name}={value}, unknown here: update Conch"
        _, unmet = NEEDS[name]
        if (reason := unmet(value, machine)) is not None:
            return reason
    return None


def _unmet_version(version: str, machine: Machine) -> str | None:
    if machine.tensorrt_llm_version == version:
        return None
    has = f"TensorRT-LLM {machine.tensorrt_llm_version}" if machine.tensorrt_llm_version else "no TensorRT-LLM"
    return (
        f"built with TensorRT-LLM {version}, this machine has {has}: "
        f"build it again here, or use a container image with {version}"
    )


def _unmet_architecture(architecture: str, machine: Machine) -> str | None:
    if machine.gpu_architecture == architecture:
        return None
    return f"built for GPUs of architecture {architecture}, this machine has {_gpus(machine)}: build it again here"


def _unmet_num_gpus(num_gpus: str, machine: Machine) -> str | None:
    if machine.num_gpus >= int(num_gpus):
        return None
    return (
        f"built for {num_gpus} GPUs on each node, this machine has {_gpus(machine)}: "
        "build it again for fewer, or give this process more"
    )


# By the name in `requires`: its words for people, and the check.
NEEDS = {
    "tensorrt_llm": ("TensorRT-LLM version", _unmet_version),
    "gpu_architecture": ("GPU architecture", _unmet_architecture),
    "num_gpus": ("number of GPUs", _unmet_num_gpus),
}


def _gpus(machine: Machine) -> str:
    if not machine.gpu_names:
        return f"none ({machine.gpu_error})" if machine.gpu_error else "none"
    names = " and ".join(sorted(set(machine.gpu_names)))
    return f"{machine.num_gpus} x {names} ({machine.gpu_architecture})"


def _query_gpus(visible: str | None) -> list[tuple[str, int, str]]:
    """Return name, memory in bytes and architecture of each GPU.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: nvidia-smi is missing, or failed.
    """
    ids = () if visible is None else (f"--id={visible}",)
    answer = subprocess.run(
        ["nvidia-smi", *_QUERY, *ids], check=False, capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    if answer.returncode:
        raise ValueError(answer.stdout.strip() or answer.stderr.strip() or f"exit status {answer.returncode}")
    return [_gpu_of_row(line) for line in answer.stdout.splitlines() if line.strip()]


def _gpu_of_row(row: str) -> tuple[str, int, str]:
    name, memory_mib, capability = (column.strip() for column in row.rsplit(",", 2))
    return name, int(memory_mib) * _BYTES_PER_MIB, f"sm{int(capability.replace('.', ''))}"


def installed_version(package: str) -> str | None:
    """Return the version of an installed Python package, None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
