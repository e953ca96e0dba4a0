"""The properties of a machine, and whether an artifact can run on it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from model_repository.system.machine import Machine, read_machine, show_only, why_unfit

BIN = Path(__file__).parents[2] / "doubles" / "bin"
H100 = "NVIDIA H100 80GB HBM3, 81559, 9.0"
MACHINE = Machine(
    gpu_names=("NVIDIA H100 80GB HBM3",) * 2,
    gpu_memory_bytes=81559 << 20,
    gpu_architecture="sm90",
    tensorrt_llm_version="1.2.1",
)
REQUIRES = {"tensorrt_llm": "1.2.1", "gpu_architecture": "sm90", "num_gpus": "2"}


def install(monkeypatch: pytest.MonkeyPatch, folder: Path, gpus: list[str], version: str | None = None) -> None:
    """Put nvidia-smi's double on PATH, and TensorRT-LLM's metadata where Python finds packages."""
    monkeypatch.setenv("PATH", f"{BIN}:{Path(sys.executable).parent}:/usr/bin:/bin")
    monkeypatch.setenv("CONCH_DOUBLE_GPUS", "\n".join(gpus))
    if version is not None:
        (folder / f"tensorrt_llm-{version}.dist-info").mkdir()
        metadata = f"Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: {version}\n"
        (folder / f"tensorrt_llm-{version}.dist-info" / "METADATA").write_text(metadata)
        monkeypatch.syspath_prepend(str(folder))


def test_a_machine_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, [H100, H100], "1.2.1")
    assert read_machine({}) == MACHINE
    assert read_machine({}).num_gpus == 2


def test_other_gpus_are_hidden() -> None:
    for visible, expected in (({}, "2,3"), ({"CUDA_VISIBLE_DEVICES": "7,6,5,4"}, "5,4")):
        environment: dict[str, str] = dict(visible)
        show_only((2, 3), environment)
        assert environment == {"CUDA_VISIBLE_DEVICES": expected}
    with pytest.raises(IndexError):
        show_only((1,), {"CUDA_VISIBLE_DEVICES": "4"})


def test_only_visible_gpus_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, [H100, "NVIDIA A100-SXM4-40GB, 40960, 8.0"])
    both, one = read_machine({}), read_machine({"CUDA_VISIBLE_DEVICES": "1"})
    assert (both.gpu_architecture, both.gpu_memory_bytes) == ("sm80 and sm90", 40960 << 20)
    assert (one.gpu_names, one.gpu_architecture) == (("NVIDIA A100-SXM4-40GB",), "sm80")


def test_a_machine_without_nvidia_smi_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    machine = read_machine({})
    assert (machine.num_gpus, machine.gpu_architecture, machine.gpu_memory_bytes) == (0, None, 0)
    assert machine.gpu_error is not None
    assert machine.gpu_error.startswith("nvidia-smi: ")


def test_the_error_of_nvidia_smi_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, [])
    monkeypatch.delenv("CONCH_DOUBLE_GPUS")
    said = "nvidia-smi: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    assert read_machine({}).gpu_error == said
    assert why_unfit({"num_gpus": "1"}, read_machine({})) == (
        f"built for 1 GPUs on each node, this machine has none ({said}): "
        "build it again for fewer, or give this process more"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"num_gpus": "1"}, None),
        (
            {"tensorrt_llm": "1.2.0"},
            "built with TensorRT-LLM 1.2.0, this machine has TensorRT-LLM 1.2.1: "
            "build it again here, or use a container image with 1.2.0",
        ),
        (
            {"gpu_architecture": "sm80"},
            "built for GPUs of architecture sm80, this machine has 2 x NVIDIA H100 80GB HBM3 (sm90): "
            "build it again here",
        ),
        (
            {"num_gpus": "4"},
            "built for 4 GPUs on each node, this machine has 2 x NVIDIA H100 80GB HBM3 (sm90): "
            "build it again for fewer, or give this process more",
        ),
        ({"driver": "600"}, "needs driver=600, unknown here: update Conch"),
    ],
)
def test_an_unfit_machine_is_named_in_one_line(changes: dict[str, str], reason: str | None) -> None:
    assert why_unfit(REQUIRES | changes, MACHINE) == reason


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_gpus_are_none(visible: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, [H100])
    machine = read_machine({"CUDA_VISIBLE_DEVICES": visible})
    assert (machine.num_gpus, machine.gpu_error) == (0, f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU")
