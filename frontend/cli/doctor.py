"""The command `doctor`: it checks this machine, and says how to get what is missing."""

from __future__ import annotations

import os
import platform
import re
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
from model_repository.system.devices import NoDevices, read_devices
from model_repository.system.graphics_cards import is_in_wsl, nvidia_driver_version, render_nodes
from model_repository.system.llama_build import LlamaBuild, UnusableBuild, usable_build
from model_repository.system.machine import Machine, read_machine
from model_repository.system.running_servers import running_servers

_OLDEST_OF_CUDA = 75  # sm_75, the only architecture that the build for CUDA has code for
_SOFTWARE = "llvmpipe"  # a driver of Vulkan
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
    machine = read_machine()
    yield from _gpu_findings(machine)
    yield from _llama_findings(machine)
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
    if driver := nvidia_driver_version():
        gpus = f"{gpus}, driver {driver}"
    reason = f"none ({machine.gpu_error})" if version else "none"
    yield Finding("GPU", bool(names) or version is None, gpus if names else reason)
    if version is None:
        hint = "; docs/gpu.md has the images with it" if names else ""
        yield Finding("TensorRT-LLM", True, f"not installed: llama.cpp serves the models{hint}")
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


def _llama_findings(machine: Machine) -> Iterator[Finding]:
    """Yield the build of llama.cpp, and each device that it computes on."""
    subject = "llama.cpp"
    try:
        build = usable_build()
    except UnusableBuild as exc:
        yield Finding(subject, False, str(exc))
        return
    if build is None:
        return
    name = f"{build.package} {build.version} ({build.llama_cpp_version})"
    if not build.devices:
        yield Finding(subject, True, f"{name} computes on cores{_unused_cards(machine)}")
        return
    yield Finding(subject, True, f"{name} computes on devices of {build.devices}{_compiled_for(build)}")
    try:
        devices = read_devices()
    except NoDevices as exc:
        yield Finding("devices", False, str(exc))
        return
    for device in devices:
        free_text = f"{device.free_bytes / 1e9:.1f} of {device.total_bytes / 1e9:.1f} GB free"
        hint = "; software on cores, slower than conch[cpu]" if _SOFTWARE in device.description else ""
        yield Finding(device.name, True, f"{device.description}, {free_text}{hint}")
    if not devices:
        yield Finding("devices", False, _why_no_device(build, machine))


def _compiled_for(build: LlamaBuild) -> str:
    names = ", ".join(build.architectures)
    match build.devices:
        case "CUDA":
            return f", compiled for sm_{names}: newer cards compile it at their first load, by a driver from 550 on"
        case "ROCm":
            return f", compiled for {names}: other cards need conch[vulkan]"
    return ""


def _unused_cards(machine: Machine) -> str:
    """Return the extra for the cards of this machine, for a build that uses none of them."""
    if machine.gpu_names:
        cards = " and ".join(sorted(set(machine.gpu_names)))
        architectures = re.findall(r"sm(\d+)", machine.gpu_architecture or "")
        extra = "cuda12" if all(int(number) >= _OLDEST_OF_CUDA for number in architectures) else "vulkan"
    elif vendors := sorted({node.vendor for node in render_nodes()}):
        cards, extra = f"the card of {' and '.join(vendors)}", "vulkan"
    else:
        return ""
    return f"; conch[{extra}] in place of conch[cpu], or make serve DEVICE={extra}, would use {cards} (docs/cards.md)"


def _why_no_device(build: LlamaBuild, machine: Machine) -> str:
    if build.devices == "CUDA":
        error = machine.gpu_error or "CUDA finds no card"
        is_absent = error.startswith("nvidia-smi") and nvidia_driver_version()
        return f"none: {error}{'; a container gets the cards by --gpus all' if is_absent else ''}"
    nodes = render_nodes()
    for node in nodes:
        if not node.is_open:
            rule = "add yourself to the group of this file, or start the container with --device /dev/dri"
            return f"none: {node.path} ({node.vendor}) cannot be opened: {rule}"
    if not nodes and is_in_wsl():
        return "none: WSL2 has NVIDIA's cards for conch[cuda12] alone"
    if not nodes:
        return "none: this machine has no graphics card"
    if build.devices != "Vulkan":
        return f"none: {build.devices} finds no card that it has code for"
    drivers = "Debian's and Ubuntu's package mesa-vulkan-drivers for AMD and Intel, NVIDIA's own driver for NVIDIA"
    return f"none: the card's driver is missing: {drivers}"


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
