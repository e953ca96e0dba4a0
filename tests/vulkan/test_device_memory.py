"""The memory of models on devices: that of the plan beside that of a real load, by llama.cpp's own log."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from build_engines.llama_cpp.device_trial import layer_memory
from model_repository.engine.llama_cpp.context import context_params, embedding_params
from model_repository.engine.llama_cpp.devices import DeviceStates, list_devices, shares_of
from model_repository.engine.llama_cpp.library import llama, model_params
from model_repository.engine.runtime import EngineConfig
from model_repository.system.devices import DeviceUse, read_devices
from tests.model_repository.engine.tiny_models import write_model

_SIZE = re.compile(r"(\S+) +(?:model|KV|RS|compute) buffer size = +([\d.]+) MiB")
_ROUNDING = 3 * 0.005 * 2**20  # of the log's figures
PLANNED = {
    device.name: DeviceUse(description=device.description, used_bytes=5, total_bytes=device.total_bytes)
    for device in list_devices()
}


def config_of(folder: Path, gpu_layers: int, pooling: str = "") -> EngineConfig:
    return EngineConfig(
        runtime="llama_cpp",
        artifact_dir=folder,
        context_window=1024,
        eos_token_ids=frozenset(),
        max_sequences=3,
        pooling=pooling,
        gpu_layers=gpu_layers,
        devices=PLANNED,
    )


def loaded(path: Path, config: EngineConfig) -> Counter[str]:
    """Return the memory by device that llama.cpp takes for a model and its context."""
    shares, logged = shares_of(config), list[str]()
    llama.set_log_callback(lambda level, text: logged.append(text))
    try:
        with closing(llama.LlamaModel(str(path), model_params(config.gpu_layers, shares))) as model:
            if config.pooling:
                params = [embedding_params(model, config, window) for window in (512, config.context_window)]
            else:
                params = [context_params(config.max_sequences, config.context_window, is_f32=False)]
            for each in params:
                llama.LlamaContext(model, each).close()
    finally:
        llama.disable_logging()
    sizes = Counter[str]()
    for name, size_mib in _SIZE.findall("".join(logged)):
        sizes[name] += round(float(size_mib) * 2**20)
    return sizes


@pytest.mark.parametrize(("name", "gpu_layers"), [("gpt-oss", 99), ("qwen35", 99), ("gemma4", 2), ("deepseek2", 2)])
def test_the_planned_memory_is_that_of_a_load(name: str, gpu_layers: int, tmp_path: Path) -> None:
    path, config = write_model(tmp_path / "model.gguf", name), config_of(tmp_path, gpu_layers)
    memory, used = layer_memory(name, config), loaded(path, config)
    assert memory.devices[-1] in PLANNED
    assert (memory.devices[0] in PLANNED) == (gpu_layers == 99)
    for device in PLANNED:
        assert used[device] > 0
        assert memory.used_bytes[device] == pytest.approx(used[device], rel=0.02, abs=_ROUNDING)


def test_the_planned_memory_of_a_model_that_embeds_is_that_of_a_load(tmp_path: Path) -> None:
    path, config = write_model(tmp_path / "model.gguf", "bert"), config_of(tmp_path, 99, "mean")
    memory, used = layer_memory("bert", config), loaded(path, config)
    for device in PLANNED:
        assert memory.used_bytes[device] == pytest.approx(used[device], rel=0.02, abs=_ROUNDING)


def test_the_state_of_a_device_has_its_free_memory() -> None:
    states, listed = DeviceStates(PLANNED).latest(), {device.name: device for device in read_devices()}
    assert states.keys() == listed.keys() == PLANNED.keys()
    for name, state in states.items():
        assert state.used_bytes == 5
        assert 0 < state.free_bytes <= listed[name].total_bytes
