"""Weights that are loaded while the arbiter follows, to the devices of the plan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from model_repository.contract import engine_file
from model_repository.contract.engine_file import begin_load, share_of_load, stop_engine
from model_repository.engine.llama_cpp import devices as llama_devices
from model_repository.engine.llama_cpp.library import model_params
from model_repository.engine.llama_cpp.weights import load_weights
from model_repository.engine.runtime import EngineConfig
from model_repository.errors import EngineFailed
from model_repository.system.devices import Device, DeviceUse


@pytest.fixture
def model(tiny_artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine_file, "_INTERVAL_S", 0.0)
    for name in ("_own", "_own_stop"):
        monkeypatch.setattr(engine_file, name, None)
    begin_load("a")
    return tiny_artifact / "model.gguf"


def config_of(model: Path, gpu_layers: int = 0, precision: str = "f16", **total_bytes: int) -> EngineConfig:
    uses = {name: DeviceUse(description="", used_bytes=1, total_bytes=total) for name, total in total_bytes.items()}
    return EngineConfig(
        runtime="llama_cpp",
        artifact_dir=model.parent,
        context_window=512,
        eos_token_ids=frozenset(),
        precision=precision,
        gpu_layers=gpu_layers,
        devices=uses,
    )


def test_the_share_is_told_up_to_the_end(model: Path) -> None:
    load_weights(model, config_of(model))
    assert share_of_load("a") == 1.0


def test_a_load_that_is_stopped_fails(model: Path) -> None:
    stop_engine("a")
    with pytest.raises((OSError, RuntimeError, ValueError, MemoryError)):
        load_weights(model, config_of(model))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((), "planned for CUDA0, CUDA2, llama.cpp has no device here: start the server again"),
        (("CUDA0", "CUDA1"), "planned for CUDA2, llama.cpp has CUDA0, CUDA1 here: start the server again"),
    ],
)
def test_a_device_of_the_plan_that_is_not_there_is_named(
    model: Path, monkeypatch: pytest.MonkeyPatch, found: tuple[str, ...], expected: str
) -> None:
    devices = [Device(name=name, description="", free_bytes=0, total_bytes=1) for name in found]
    monkeypatch.setattr(llama_devices, "list_devices", lambda: devices)
    with pytest.raises(EngineFailed, match=expected):
        load_weights(model, config_of(model, 1, CUDA0=1, CUDA2=1))


def test_devices_share_the_layers_by_their_memory_and_one_of_several_has_all(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a device without layers, llama.cpp made wrong numbers."""
    devices = [Device(name=f"CUDA{number}", description="", free_bytes=0, total_bytes=9) for number in range(3)]
    monkeypatch.setattr(llama_devices, "list_devices", lambda: devices)
    assert llama_devices.shares_of(config_of(model, 1, CUDA2=24, CUDA0=8, CUDA1=9)) == [8, 9, 24]
    one = model_params(1, llama_devices.shares_of(config_of(model, 1, CUDA2=24)))
    assert (one.split_mode, one.main_gpu) == (0, 2)
    with pytest.raises(EngineFailed, match="planned for CUDA2, CUDA0 of CUDA0, CUDA1, CUDA2"):
        llama_devices.shares_of(config_of(model, 1, CUDA2=24, CUDA0=8))


@pytest.mark.parametrize(
    ("gpu_layers", "precision", "expected"),
    [
        (0, "f32", {}),
        (1, "f16", {"GGML_NO_BACKTRACE": "1"}),
        (1, "f32", {"GGML_NO_BACKTRACE": "1", "GGML_VK_DISABLE_F16": "1", "NVIDIA_TF32_OVERRIDE": "0"}),
    ],
)
def test_devices_compute_f32_without_shorter_numbers(
    model: Path, monkeypatch: pytest.MonkeyPatch, gpu_layers: int, precision: str, expected: Mapping[str, str]
) -> None:
    """The libraries' own choice is f16 or TF32, also for matrices of f32."""
    environment: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environment)
    load_weights(model, config_of(model, gpu_layers, precision))
    assert environment.items() >= expected.items() and ("GGML_VK_DISABLE_COOPMAT" in environment) == (len(expected) > 1)
