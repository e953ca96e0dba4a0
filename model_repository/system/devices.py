"""The devices that llama.cpp computes on, beside the cores."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from model_repository.system.llama_build import LlamaBuild, installed_build
from model_repository.system.machine import Machine, read_machine

_PROGRAM = "model_repository.engine.llama_cpp.devices"
_TIMEOUT_S = 60.0  # a driver that wakes eight cards takes several seconds


class Device(Struct, frozen=True, kw_only=True):
    """A device, by llama.cpp's name: CUDA0, Vulkan1."""

    name: str
    description: str  # of the driver
    free_bytes: int
    total_bytes: int


class DeviceUse(Struct, frozen=True, kw_only=True):
    """The part of a device that a loaded model takes, by the plan."""

    description: str
    used_bytes: int
    total_bytes: int
    room_bytes: int = 0  # that all models may have, as the plan found it; 0: not known


def shown(devices: Mapping[str, DeviceUse]) -> str:
    """Return the used parts of devices for people."""
    return " and ".join(
        f"{name} ({use.description}): {use.used_bytes / 1e9:.1f} of {use.total_bytes / 1e9:.1f} GB"
        for name, use in devices.items()
    )


class NoDevices(RuntimeError):
    """The devices cannot be listed."""


def read_devices() -> list[Device]:
    """Return the devices of the installed build. A process of its own loads their driver: this one stays without.

    Raises:
        NoDevices: the driver failed, or the build has no code for a card of NVIDIA.
        BuildsCollide: see installed_build.
    """
    build = installed_build()
    if build is None or not build.devices:
        return []
    if build.devices == "CUDA":
        _check_code(build, read_machine())
    command = [sys.executable, "-P", "-m", _PROGRAM]
    try:
        done = subprocess.run(command, env=os.environ, capture_output=True, check=True, timeout=_TIMEOUT_S)
        return msgspec.json.decode(done.stdout, type=list[Device])
    except subprocess.CalledProcessError as exc:
        lines = exc.stderr.decode(errors="replace").split("\n")
        reason = next((line for line in reversed(lines) if line), f"status {exc.returncode}")
        raise NoDevices(f"{build.package}: {reason}") from exc
    except (OSError, subprocess.TimeoutExpired, msgspec.DecodeError) as exc:
        raise NoDevices(f"{build.package}: {exc}") from exc


def _check_code(build: LlamaBuild, machine: Machine) -> None:
    """Check that the build has code for all cards: CUDA lists older ones too, for which a driver cannot compile it."""
    oldest = min(map(int, build.architectures), default=0)
    for number in re.findall(r"sm(\d+)", machine.gpu_architecture or ""):
        if int(number) < oldest:
            # Not their numbers: CUDA counts the fastest card first.
            others = "write the UUIDs of the other cards (`nvidia-smi -L`) into CUDA_VISIBLE_DEVICES"
            remedy = f"install conch[vulkan] in its place, or {others}"
            raise NoDevices(f"{build.package} has no code for sm_{number}, only from sm_{oldest} on: {remedy}")
