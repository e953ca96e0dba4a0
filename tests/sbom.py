"""Writes sbom.json: what is pinned, and what is compiled into it, in CycloneDX's format."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from model_repository.system.llama_build import PACKAGES, installed_build

PROJECT = Path(__file__).parents[1]
_CARDS = tuple(f"helm/images/{device}.txt" for device in ("cuda12", "rocm", "vulkan"))
LISTED = ("tests/requirements.txt", "tests/real_model.txt", *_CARDS)
SERVED = ("helm/images/frontend.txt", "helm/images/local.txt", "helm/images/cpu.txt", *_CARDS)  # not for tests alone
TRITON_VERSION, TRITON_RELEASE = (
    "2.51.0",
    "24.10",
)  # in nvidia-pytriton 0.7.0, which does not tell; a test asks the server


def sbom() -> Bom:
    """Return the bill of materials."""
    served = {name for file in SERVED for name, _ in _pins(file)}
    conch = Component(name="conch", version=metadata.version("conch"), type=ComponentType.APPLICATION)
    parts = {name: _package(name, version, name in served) for file in LISTED for name, version in _pins(file)}
    triton, llama_cpp = _triton(), _llama_cpp()
    bom = Bom(components=[*parts.values(), triton, llama_cpp])
    bom.metadata.component = conch
    bom.register_dependency(conch, parts.values())
    bom.register_dependency(parts["nvidia-pytriton"], [triton])
    for package in PACKAGES.keys() & parts.keys():
        bom.register_dependency(parts[package], [llama_cpp])
    return bom


def _pins(file: str) -> list[tuple[str, str]]:
    return re.findall(r"^([\w.-]+)==(\S+)", (PROJECT / file).read_text(encoding="utf-8"), re.MULTILINE)


def _package(name: str, version: str, is_served: bool) -> Component:
    purl = PackageURL("pypi", name=name, version=version)
    scope = ComponentScope.REQUIRED if is_served else ComponentScope.EXCLUDED
    return Component(name=name, version=version, purl=purl, bom_ref=str(purl), scope=scope)


def _triton() -> Component:
    purl = PackageURL("github", "triton-inference-server", "server", f"v{TRITON_VERSION}")
    cpe = f"cpe:2.3:a:nvidia:triton_inference_server:{TRITON_RELEASE}:*:*:*:*:*:*:*"
    return Component(
        name="tritonserver",
        version=TRITON_VERSION,
        purl=purl,
        bom_ref=str(purl),
        cpe=cpe,
        type=ComponentType.APPLICATION,
    )


def _llama_cpp() -> Component:
    build = installed_build()  # the others have the same version, and the same llama.cpp
    assert build is not None
    purl = PackageURL("github", "ggml-org", "llama.cpp", build.llama_cpp_version)
    return Component(name="llama.cpp", version=build.llama_cpp_version, purl=purl, bom_ref=str(purl))


if __name__ == "__main__":
    JsonV1Dot6(sbom()).output_to_file("sbom.json", allow_overwrite=True, indent=2)
