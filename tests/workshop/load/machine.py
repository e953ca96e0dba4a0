"""The machine and the versions that a figure belongs to."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import psutil

from model_repository.system.cores import num_cores

_PACKAGES = (
    "conch",
    "aiohttp",
    "cyllama",
    "grpcio",
    "httptools",
    "numpy",
    "nvidia-pytriton",
    "orjson",
    "protobuf",
    "pydantic",
    "tokenizers",
    "tritonclient",
    "uvloop",
    "xllamacpp",
)


def describe_machine() -> dict[str, Any]:
    """Return cores, processor, memory, load at the start and versions, as JSON takes them."""
    return {
        "num_cores": num_cores(),
        "cpu_model": _cpu_model(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "load_average": os.getloadavg(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def summary_line(machine: dict[str, Any]) -> str:
    """Return one line for the reader of a table."""
    return (
        f"{machine['num_cores']} cores, {machine['cpu_model']}, Python {machine['python']}, "
        f"load average {machine['load_average'][0]:.1f} before the start"
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
