"""The build of llama.cpp that is installed. Each kind of graphics card has its own, as a package of its own."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# By the name of the package: the name that llama.cpp gives its devices, without their numbers.
PACKAGES: Mapping[str, str] = MappingProxyType(
    {
        "cyllama": "",
        "cyllama-cuda12": "CUDA",
        "cyllama-rocm": "ROCm",
        "cyllama-sycl": "SYCL",
        "cyllama-vulkan": "Vulkan",
    }
)


class BuildsCollide(RuntimeError):
    """Two builds are in one environment. The files of the later one have replaced those of the other."""


@dataclass(frozen=True, slots=True)
class LlamaBuild:
    """An installed build."""

    package: str
    version: str

    @property
    def devices(self) -> str:
        """The name of the devices that it computes on; empty: it computes on cores alone."""
        return PACKAGES[self.package]


def installed_build() -> LlamaBuild | None:
    """Return the build that this process imports; None: there is none.

    Raises:
        BuildsCollide: names both.
    """
    found: dict[str, list[LlamaBuild]] = {}  # by folder, in the order of imports
    for distribution in importlib.metadata.distributions():
        if (name := distribution.name) in PACKAGES:
            builds = found.setdefault(str(distribution.locate_file("")), [])
            builds.append(LlamaBuild(name, distribution.version))
    first = next(iter(found.values()), [])
    if len(first) > 1:
        names = sorted(build.package for build in first)
        remedy = f"pip uninstall {' '.join(names)}, then install one extra again: conch[cpu], conch[vulkan], ..."
        raise BuildsCollide(f"{' and '.join(names)} are installed, and share the folder cyllama: {remedy}")
    return first[0] if first else None
