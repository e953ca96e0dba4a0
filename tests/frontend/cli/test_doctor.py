"""The findings of `doctor` about GPUs, TensorRT-LLM, and the build of llama.cpp."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from frontend.cli import doctor
from frontend.cli.doctor import findings
from model_repository.system import llama_build
from model_repository.system.devices import Device, NoDevices
from model_repository.system.graphics_cards import RenderNode
from tests.llama_packages import install_build

NVIDIA_SMI = Path(__file__).parents[2] / "doubles" / "bin"
H100 = "NVIDIA H100 80GB HBM3, 81559, 9.0"
ON_CPU = "not installed: llama.cpp serves the models"
OLD = (
    "1.2.1 has engines, the PyTorch backend; "
    "it lacks seeds on it, raw log probabilities on it, CUDA graphs beside adapters on it"
)
NEW = (
    "1.3.0rc29 has the PyTorch backend, raw log probabilities on it, CUDA graphs beside adapters on it; "
    "it lacks engines, seeds on it"
)


@pytest.mark.parametrize(
    ("gpus", "version", "gpu", "is_well", "tensorrt_llm"),
    [
        ("", None, "none", True, ON_CPU),
        (f"{H100}\n{H100}", None, "2 x NVIDIA H100 80GB HBM3 (sm90), 86 GB each", True, f"{ON_CPU}; docs/gpu.md has"),
        (H100, "1.2.1", "1 x NVIDIA H100 80GB HBM3 (sm90), 86 GB each", True, OLD),
        (H100, "1.3.0rc29", "1 x NVIDIA H100 80GB HBM3 (sm90), 86 GB each", True, NEW),
        (H100, "1.4.0rc1", "1 x NVIDIA", True, "1.4.0rc1 has the PyTorch backend, "),
        ("", "1.2.1", "none (CUDA_VISIBLE_DEVICES='' hides every GPU)", False, OLD),
    ],
)
def test_gpus_and_the_features_of_the_release_are_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpus: str,
    version: str | None,
    gpu: str,
    is_well: bool,
    tensorrt_llm: str,
) -> None:
    monkeypatch.setenv("PATH", f"{NVIDIA_SMI}:{os.environ['PATH']}")
    if gpus:
        monkeypatch.setenv("CONCH_DOUBLE_GPUS", gpus)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if version is not None:
        package = tmp_path / f"tensorrt_llm-{version}.dist-info"
        package.mkdir()
        (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {version}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
    found = {finding.subject: finding for finding in findings(tmp_path / "home")}
    assert found["GPU"].text.startswith(gpu)
    assert (found["GPU"].is_well, found["TensorRT-LLM"].is_well) == (is_well, True)
    assert found["TensorRT-LLM"].text.startswith(tensorrt_llm)
    assert ("not tested" in found["TensorRT-LLM"].text) == (version == "1.4.0rc1")


RTX = "NVIDIA GeForce RTX 4090"
CARD = Device(name="CUDA0", description=RTX, free_bytes=20_000_000_000, total_bytes=25_000_000_000)
SOFTWARE = Device(name="Vulkan0", description="llvmpipe (LLVM 15)", free_bytes=2 << 30, total_bytes=2 << 30)
NODE = RenderNode(Path("/dev/dri/renderD128"), "AMD", True)
CLOSED = RenderNode(Path("/dev/dri/renderD128"), "AMD", False)


def of_llama(home: Path) -> dict[str, tuple[bool, str]]:
    """Return the findings about llama.cpp and its devices: whether all is well, and the text."""
    all_found = {finding.subject: (finding.is_well, finding.text) for finding in findings(home)}
    return {name: found for name, found in all_found.items() if name in ("llama.cpp", "devices", "CUDA0", "Vulkan0")}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with the libraries of all drivers, and without a card."""
    monkeypatch.setenv("PATH", f"{NVIDIA_SMI}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(llama_build, "_OF_SYSTEM", {name: {} for name in llama_build.PACKAGES.values()})
    monkeypatch.setattr(llama_build, "_OPENMP", {})
    monkeypatch.setattr(doctor, "is_in_wsl", lambda: False)
    monkeypatch.setattr(doctor, "render_nodes", list)
    monkeypatch.setattr(doctor, "read_devices", list)
    return tmp_path


@pytest.mark.parametrize(
    ("gpus", "nodes", "hint"),
    [
        ("", [], ""),
        (
            f"{RTX}, 24564, 8.9",
            [NODE],
            f"conch[cuda12] in place of conch[cpu], or make serve DEVICE=cuda12, would use {RTX} ",
        ),
        (
            "NVIDIA GeForce GTX 1080, 8192, 6.1",
            [],
            "conch[vulkan] in place of conch[cpu], or make serve DEVICE=vulkan, would use NVIDIA GeForce GTX 1080 ",
        ),
        (
            "",
            [NODE, CLOSED],
            "conch[vulkan] in place of conch[cpu], or make serve DEVICE=vulkan, would use the card of AMD ",
        ),
    ],
)
def test_a_build_for_cores_names_the_extra_for_the_cards_of_the_machine(
    machine, monkeypatch, gpus, nodes, hint
) -> None:
    monkeypatch.setenv("CONCH_DOUBLE_GPUS", gpus)
    monkeypatch.setattr(doctor, "render_nodes", lambda: nodes)
    install_build(machine, "cyllama", monkeypatch)
    text = "cyllama 0.7.0 (b1) computes on cores"
    assert of_llama(machine / "home") == {"llama.cpp": (True, f"{text}; {hint}(docs/cards.md)" if hint else text)}


def test_devices_are_listed_with_their_memory_and_the_code_that_is_compiled(machine, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "read_devices", lambda: [CARD])
    install_build(machine, "cyllama-cuda12", monkeypatch, "75")
    compiled = "compiled for sm_75: newer cards compile it at their first load, by a driver from 550 on"
    assert of_llama(machine / "home") == {
        "llama.cpp": (True, f"cyllama-cuda12 0.7.0 (b1) computes on devices of CUDA, {compiled}"),
        "CUDA0": (True, f"{RTX}, 20.0 of 25.0 GB free"),
    }


def test_a_device_that_is_software_is_named_so(machine, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "read_devices", lambda: [SOFTWARE])
    install_build(machine, "cyllama-vulkan", monkeypatch)
    is_well, text = of_llama(machine / "home")["Vulkan0"]
    assert (is_well, text) == (
        True,
        "llvmpipe (LLVM 15), 2.1 of 2.1 GB free; software on cores, slower than conch[cpu]",
    )


@pytest.mark.parametrize(
    ("package", "nodes", "reason"),
    [
        ("cyllama-vulkan", [], "none: this machine has no graphics card"),
        (
            "cyllama-vulkan",
            [NODE],
            "none: the card's driver is missing: Debian's and Ubuntu's package mesa-vulkan-drivers",
        ),
        ("cyllama-vulkan", [CLOSED], "none: /dev/dri/renderD128 (AMD) cannot be opened: add yourself to the group "),
        ("cyllama-rocm", [NODE], "none: ROCm finds no card that it has code for"),
        ("cyllama-cuda12", [], "none: CUDA_VISIBLE_DEVICES='' hides every GPU"),
    ],
)
def test_the_reason_for_no_device_is_named(machine, monkeypatch, package, nodes, reason) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(doctor, "render_nodes", lambda: nodes)
    install_build(machine, package, monkeypatch)
    is_well, text = of_llama(machine / "home")["devices"]
    assert not is_well and text.startswith(reason)


def test_the_remedy_in_a_container_and_in_wsl_is_named(machine, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "nvidia_driver_version", lambda: "550.1")
    monkeypatch.setattr(doctor, "is_in_wsl", lambda: True)
    install_build(machine, "cyllama-cuda12", monkeypatch, "75")
    assert of_llama(machine / "home")["devices"][1].endswith("; a container gets the cards by --gpus all")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert of_llama(machine / "home")["devices"][1] == "none: CUDA_VISIBLE_DEVICES='' hides every GPU"
    shutil.rmtree(machine / "cyllama_cuda12-0.7.0.dist-info")
    install_build(machine, "cyllama-vulkan", monkeypatch)
    assert of_llama(machine / "home")["devices"][1] == "none: WSL2 has NVIDIA's cards for conch[cuda12] alone"


def test_a_driver_that_fails_and_two_builds_are_problems(machine, monkeypatch) -> None:
    def fail() -> list[Device]:
        raise NoDevices("cyllama-rocm: status -11")

    monkeypatch.setattr(doctor, "read_devices", fail)
    install_build(machine, "cyllama-rocm", monkeypatch, "gfx90a;gfx1100")
    found = of_llama(machine / "home")
    assert found["llama.cpp"][1].endswith(
        "devices of ROCm, compiled for gfx90a, gfx1100: other cards need conch[vulkan]"
    )
    assert found["devices"] == (False, "cyllama-rocm: status -11")
    install_build(machine, "cyllama", monkeypatch)
    is_well, text = of_llama(machine / "home")["llama.cpp"]
    assert not is_well and text.startswith("cyllama and cyllama-rocm are installed, and share the folder cyllama: ")
