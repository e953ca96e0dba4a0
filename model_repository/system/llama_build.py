"""The build of llama.cpp that is installed. Each kind of graphics card has its own, as a package of its own."""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import PathFinder
from pathlib import Path
from types import MappingProxyType
from typing import Any

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
# The libraries of the system that a build needs, by the name of its devices. Each text says where the library is from.
_ROCM, _DEBIAN = "AMD's ROCm 6 has it", "Debian's and Ubuntu's package"
_OF_SYSTEM: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "CUDA": {"libcuda.so.1": "NVIDIA's driver has it, and a container gets it by `--gpus all`"},
        "ROCm": {"libamdhip64.so.6": _ROCM, "libhipblas.so.2": _ROCM, "librocblas.so.4": _ROCM},
        "SYCL": {"libsycl.so.8": "Intel's oneAPI has it"},
        "Vulkan": {"libvulkan.so.1": f"{_DEBIAN} libvulkan1 has it"},
    }
)
_OPENMP = {"libgomp.so.1": f"{_DEBIAN} libgomp1 has it"}
_REMEDY = "install one extra again: conch[cpu], conch[vulkan], ..."


class UnusableBuild(RuntimeError):
    """The installed build cannot be imported. The message names the remedy."""


class BuildsCollide(UnusableBuild):
    """Two builds are in one environment. The files of the later one have replaced those of the other."""


@dataclass(frozen=True)
class LlamaBuild:
    """An installed build."""

    package: str
    version: str
    folder: Path = Path()  # of its Python package

    @property
    def devices(self) -> str:
        """The name of the devices that it computes on; empty: it computes on cores alone."""
        return PACKAGES[self.package]

    @property
    def llama_cpp_version(self) -> str:
        """llama.cpp's own version, as its releases are named."""
        return str(self._record["versions"]["llama_cpp_version"])

    @property
    def architectures(self) -> tuple[str, ...]:
        """The cards that it has code for: "75" of CUDA, "gfx1100" of ROCm; empty if their driver compiles all code."""
        backends = self._record["backend"]
        text: str = backends["cuda"]["architectures"] or backends["hip"]["architectures"] or ""
        return tuple(filter(None, text.split(";")))

    @cached_property
    def _record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.folder / "build_config.json").read_text(encoding="utf-8"))
        return record


def installed_build() -> LlamaBuild | None:
    """Return the build that this process imports; None: there is none.

    Raises:
        BuildsCollide: names both.
    """
    spec = PathFinder.find_spec("cyllama")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0])
    builds = [
        LlamaBuild(name, found.version, folder)
        for name in PACKAGES
        for found in importlib.metadata.distributions(name=name, path=[str(folder.parent)])
    ]
    if len(builds) > 1:
        names = [build.package for build in builds]
        remedy = f"pip uninstall {' '.join(names)}, then {_REMEDY}"
        raise BuildsCollide(f"{' and '.join(names)} are installed, and share the folder cyllama: {remedy}")
    return builds[0] if builds else None


def usable_build() -> LlamaBuild | None:
    """Return the build that this process imports, after a look at the libraries of the system that it needs.

    Raises:
        UnusableBuild: a library is missing, or see installed_build.
    """
    build = installed_build()
    if build is not None and build.devices:
        for name, remedy in {**_OF_SYSTEM[build.devices], **_OPENMP}.items():
            try:
                ctypes.CDLL(name)
            except OSError as exc:
                raise UnusableBuild(f"{build.package} needs {name}: {remedy}. conch[cpu] does without") from exc
    return build
