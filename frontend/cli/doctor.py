"""The command `doctor`: it checks this machine, and says how to get what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from frontend.launcher.checks import SHARED_MEMORY, PortChoice, check_machine, check_state_dir, free_ports
from frontend.launcher.errors import AlreadyServing, LaunchError
from frontend.launcher.libpython import why_unusable
from frontend.launcher.state_lock import FILE_NAME, locked
from frontend.launcher.triton_server import ADDRESS, find_triton
from frontend.settings import SettingsError
from model_repository.contract.tensors import ensemble_to_model_id
from model_repository.system.cores import memory_bytes, num_physical_cores
from model_repository.system.machine import installed_version

_MIN_DISK_BYTES = 5 << 30  # a small model, with its download


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about the machine."""

    subject: str
    is_well: bool
    text: str


def findings(state_dir: Path) -> Iterator[Finding]:
    """Yield what serving needs on this machine, and what it would use."""
    reason = why_unusable()
    yield Finding("Python", reason is None, reason or platform.python_version())
    yield _checked("Triton", _triton)
    yield _checked("state", _state, state_dir)
    yield _checked("limits", _limits)
    yield _checked("ports", _ports, state_dir)
    yield Finding("CPU", True, f"{num_physical_cores()} cores, {memory_bytes() / 1e9:.0f} GB of memory")
    version = installed_version("tensorrt_llm")
    gpu = f"TensorRT-LLM {version}" if version else "no TensorRT-LLM: models run on the CPU, with llama.cpp"
    yield Finding("GPU", True, gpu)
    existing = next(folder for folder in (state_dir.resolve(), *state_dir.resolve().parents) if folder.exists())
    free_bytes = shutil.disk_usage(existing).free
    yield Finding("disk", free_bytes >= _MIN_DISK_BYTES, f"{free_bytes / 1e9:.0f} GB free in {existing}")
    models = sorted(path.parent.name for path in state_dir.glob("repository/*/config.pbtxt"))
    served = ", ".join(ensemble_to_model_id(name) for name in models if "__" not in name)
    yield Finding("models", True, served or "none yet: conch serve demo, or conch serve OWNER/NAME of the hub")


def _checked[*Given](subject: str, check: Callable[[*Given], str], *given: *Given) -> Finding:
    try:
        return Finding(subject, True, check(*given))
    except (LaunchError, SettingsError, OSError) as exc:
        return Finding(subject, False, str(exc))


def _triton() -> str:
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        return str(find_triton(None, Path(folder), os.environ).binary)


def _state(state_dir: Path) -> str:
    check_state_dir(state_dir)
    return f"{state_dir} can be written"


def _limits() -> str:
    check_machine()
    return "those of the shell and of shared memory are enough"


def _ports(state_dir: Path) -> str:
    """Return whether the usual port is free, or which process serves this state folder."""
    if (state_dir / FILE_NAME).exists():
        try:
            with locked(state_dir):
                pass
        except AlreadyServing as exc:
            return str(exc)
    [port] = free_ports([PortChoice("--port", ADDRESS, 8000)]).values()
    return f"{port} is free"
