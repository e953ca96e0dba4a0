"""The findings of `doctor` about GPUs and TensorRT-LLM."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from frontend.cli.doctor import findings

NVIDIA_SMI = Path(__file__).parents[2] / "doubles" / "bin"
H100 = "NVIDIA H100 80GB HBM3, 81559, 9.0"
ON_CPU = "not installed: models run on the CPU, with llama.cpp"
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
