"""The command `doctor`: it checks this machine, and says how to get what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from frontend.launcher.checks import SHARED_MEMORY, PortChoice, check_home, check_machine, free_ports
from frontend.launcher.errors import LaunchError
from frontend.launcher.libpython import why_unusable
from frontend.launcher.triton_server import ADDRESS, find_triton
from frontend.settings import SettingsError
from model_repository.engine.tensorrt_llm.releases import release_of, why_unsure
from model_repository.system.cores import memory_bytes, num_physical_cores
from model_repository.system.machine import Machine, read_machine
from model_repository.system.running_servers import running_servers

_MIN_DISK_BYTES = 5 << 30  # a small model, with its download


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the machine."""

    subject: str
    is_well: bool
    text: str


def findings(home: Path) -> Iterator[Finding]:
    """Yield what serving needs on this machine, and what it would use."""
    reason = why_unusable()
    yield Finding("Python", reason is None, reason or platform.python_version())
    yield _checked("Triton", _triton)
    yield _checked("home", _home, home)
    yield _checked("limits", _limits)
    yield _checked("ports", _ports, home)
    yield Finding("CPU", True, f"{num_physical_cores()} cores, {memory_bytes() / 1e9:.0f} GB of memory")
    yield from _gpu_findings(read_machine())
    existing = next(folder for folder in (home.resolve(), *home.resolve().parents) if folder.exists())
    free_bytes = shutil.disk_usage(existing).free
    yield Finding("disk", free_bytes >= _MIN_DISK_BYTES, f"{free_bytes / 1e9:.0f} GB free in {existing}")
    artifacts = sorted(home.glob("artifacts/[!.]*/"))
    num_bytes = sum(path.stat().st_size for path in home.glob("artifacts/**/*") if path.is_file())
    names = f"{num_bytes / 1e9:.1f} GB: {', '.join(folder.name for folder in artifacts)}"
    hint = "none yet: conch serve demo, or conch serve OWNER/NAME of the hub"
    yield Finding("models", True, names if artifacts else hint)


def _checked[*Given](subject: str, check: Callable[[*Given], str], *given: *Given) -> Finding:
    try:
        return Finding(subject, True, check(*given))
    except (LaunchError, SettingsError, OSError) as exc:
        return Finding(subject, False, str(exc))


def _gpu_findings(machine: Machine) -> Iterator[Finding]:
    version = machine.tensorrt_llm_version
    names = " and ".join(sorted(set(machine.gpu_names)))
    gpus = f"{machine.num_gpus} x {names} ({machine.gpu_architecture}), {machine.gpu_memory_bytes / 1e9:.0f} GB each"
    reason = f"none ({machine.gpu_error})" if version else "none"
    yield Finding("GPU", bool(names) or version is None, gpus if names else reason)
    if version is None:
        hint = "; docs/gpu.md has the images with it" if names else ""
        yield Finding("TensorRT-LLM", True, f"not installed: models run on the CPU, with llama.cpp{hint}")
        return
    release = release_of(version)
    features = {
        "engines": release.has_engines,
        "the PyTorch backend": True,
        "seeds on it": release.honours_seed,
        "raw log probabilities on it": release.has_raw_logprobs,
        "CUDA graphs beside adapters on it": release.has_adapter_graphs,
    }
    has = ", ".join(name for name, is_there in features.items() if is_there)
    lacks = ", ".join(name for name, is_there in features.items() if not is_there)
    text = f"{version} has {has}; it lacks {lacks or 'nothing that Conch uses'}"
    yield Finding("TensorRT-LLM", True, f"{text} ({unsure})" if (unsure := why_unsure(version)) else text)


def _triton() -> str:
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        return str(find_triton(None, Path(folder), os.environ).binary)


def _home(home: Path) -> str:
    check_home(home)
    return f"{home} can be written"


def _limits() -> str:
    check_machine()
    return "those of the shell and of shared memory are enough"


def _ports(home: Path) -> str:
    """Return whether the usual port is free, or which processes serve."""
    if servers := [server for server in running_servers(home) if server.is_here]:
        return ", ".join(f"process {server.pid} serves at {server.url}" for server in servers)
    [port] = free_ports([PortChoice("--port", ADDRESS, 8000)]).values()
    return f"{port} is free"
