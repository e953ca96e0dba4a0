"""Graphics cards by the kernel's files: those that no library names, for lack of a driver or a build."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_VENDORS = {"0x1002": "AMD", "0x10de": "NVIDIA", "0x8086": "Intel"}


@dataclass(frozen=True, slots=True)
class RenderNode:
    """A card's file for programs that compute."""

    path: Path
    vendor: str
    is_open: bool  # to this user


def render_nodes(root: Path = Path("/")) -> list[RenderNode]:
    """Return the cards of the vendors above. A container sees all of them, but may lack their files in /dev."""
    found = []
    for node in sorted(root.glob("sys/class/drm/renderD*")):
        try:
            vendor = _VENDORS.get((node / "device" / "vendor").read_text(encoding="utf-8").strip())
        except OSError:
            continue
        if vendor is not None:
            path = root / "dev" / "dri" / node.name
            found.append(RenderNode(path, vendor, os.access(path, os.R_OK | os.W_OK)))
    return found


def is_in_wsl(root: Path = Path("/")) -> bool:
    """Whether the machine is WSL2, which gives its cards to programs of CUDA."""
    return (root / "dev" / "dxg").exists()


def nvidia_driver_version(root: Path = Path("/")) -> str | None:
    """Return the version of NVIDIA's driver in the kernel; None: it is not loaded."""
    try:
        return (root / "sys" / "module" / "nvidia" / "version").read_text(encoding="utf-8").strip()
    except OSError:
        return None
