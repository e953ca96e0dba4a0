"""What is installed on this machine, and how much of the GPUs' memory is taken: for people, never for a decision."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess

from build_engines.tensorrt_llm.checks import available_ram_bytes

_QUERY = (
    "nvidia-smi",
    "--query-gpu=index,name,memory.total,memory.used,driver_version",
    "--format=csv,noheader,nounits",
)
_TIMEOUT_S = 60.0
_BYTES_PER_MIB = 1 << 20
_PACKAGES = ("tensorrt_llm", "tensorrt", "torch", "transformers", "numpy", "tokenizers", "llguidance", "tritonclient")


def machine_facts() -> dict[str, str]:
    """Return the facts by name; what cannot be found out says why."""
    facts = {"Conch": _version("conch"), "Python": platform.python_version(), "system": platform.platform()}
    facts |= {"CPU cores": str(os.cpu_count()), "free RAM": f"{available_ram_bytes() / 1e9:,.1f} GB"}
    try:
        for index, name, total, used, driver in _gpu_rows():
            facts[f"GPU {index}"] = f"{name}, {total} MiB, of which {used} MiB are taken, driver {driver}"
    except (OSError, ValueError, subprocess.SubprocessError) as exc:
        facts["GPUs"] = f"not told: {str(exc).partition(chr(10))[0]}"
    facts["CUDA of the driver"] = _cuda_version()
    return facts | {package: _version(package) for package in _PACKAGES}


def used_gpu_bytes() -> list[int] | None:
    """Return how much of each GPU's memory is taken; None: nvidia-smi does not tell."""
    try:
        return [int(row[3]) * _BYTES_PER_MIB for row in _gpu_rows()]
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def tensorrt_llm_summary() -> str | None:
    """Return what the installed TensorRT-LLM says of itself, which a test double does too; None: there is none."""
    try:
        found = importlib.metadata.metadata("tensorrt_llm")
    except importlib.metadata.PackageNotFoundError:
        return None
    return str(found["Summary"] or "it says nothing of itself")


def _gpu_rows() -> list[tuple[str, ...]]:
    """Return index, name, MiB in all, MiB taken and driver of each GPU.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: nvidia-smi is not there, or does not tell.
    """
    done = subprocess.run(_QUERY, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode:
        raise ValueError(done.stdout.strip() or done.stderr.strip() or f"exit status {done.returncode}")
    rows = [tuple(word.strip() for word in line.split(",")) for line in done.stdout.splitlines() if line.strip()]
    if any(len(row) != 5 for row in rows):
        raise ValueError(f"nvidia-smi: unexpected answer: {done.stdout!r}")
    return rows


def _cuda_version() -> str:
    """Return the newest CUDA that the driver can run, which only the heading of nvidia-smi tells."""
    try:
        done = subprocess.run(("nvidia-smi",), check=False, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as exc:
        return f"not told: {exc}"
    found = re.search(r"CUDA Version:\s*([\d.]+)", done.stdout)
    return found[1] if found else "not told"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
