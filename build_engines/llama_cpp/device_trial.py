"""The memory of a model on devices, by layer: llama.cpp loads it in a process of its own, and allocates nothing.

Run as a program: `python -m build_engines.llama_cpp.device_trial`. It reads an EngineConfig with a placement and writes
a LayerMemory, in JSON.
"""

from __future__ import annotations

import functools
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from string import digits

import msgspec
from msgspec import Struct

from build_engines.llama_cpp.gguf_header import read_layer_bytes
from build_engines.llama_cpp.trial_load import loaded_without_memory, output_of
from model_repository.engine.runtime import EngineConfig
from model_repository.model_facts import Task
from model_repository.runtimes import PROJECTOR

# llama.cpp's log.
_LAYER = re.compile(r"load_tensors: layer +\d+ assigned to device (\S+),")
_CACHE = re.compile(r"llama_(?:kv_cache|memory_recurrent)[:,] (?:layer +(\d+): dev = |size = +([\d.]+) MiB)")
_BUFFER = re.compile(r"(\S+) compute buffer size = +([\d.]+) MiB")
_PROJECTOR = re.compile(r"CLIP using (\S+) backend")
# The driver's own memory of a process and the code of kernels, which no log has: 300 to 500 MB are reported for CUDA.
# On CUDA the process that reads the free memory makes a context first. The free memory may lack that one already, and
# the plan then counts one too many; no real card has shown it.
_CONTEXT_BYTES = {"CUDA": 400 << 20, "ROCm": 400 << 20}
_TIED = 2  # loads of the token embedding: the second one is the output's


class LayerMemory(Struct, frozen=True, kw_only=True):
    """The memory of a model by layer, the last one being the output. `CPU` is the device of layers on the cores."""

    devices: tuple[str, ...]  # of the layers
    weight_bytes: tuple[int, ...]
    cache_bytes: tuple[int, ...]  # of all sequences
    buffer_bytes: Mapping[str, int]  # of all contexts and the driver, by device or name of the machine's own memory
    projector_bytes: Mapping[str, int] = {}  # by device
    copied_bytes: int = 0  # of the output's weights, which the cores have too
    num_copies: int = 1  # processes with the model: a projector has one of its own

    @property
    def num_layers(self) -> int:
        """The number of layers, with the output."""
        return len(self.devices)

    @property
    def used_bytes(self) -> Mapping[str, int]:
        """The memory by device."""
        used = Counter(self.buffer_bytes)
        for device, *sizes in zip(self.devices, self.weight_bytes, self.cache_bytes, strict=True):
            used[device] += sum(sizes)
        return Counter({name: self.num_copies * size for name, size in used.items()}) + Counter(self.projector_bytes)


def layer_memory(name: str, config: EngineConfig) -> LayerMemory:
    """Return the memory of a model with a placement.

    Args:
        name: of the model, for the error.

    Raises:
        BuildError: llama.cpp does not load it.
    """
    return _memory(name, msgspec.json.encode(config, enc_hook=str).decode())


@functools.cache  # a model that cannot get smaller is tried twice with the same sizes
def _memory(name: str, config: str) -> LayerMemory:
    return msgspec.json.decode(output_of(__name__, name, written=config), type=LayerMemory)


def _load(config: EngineConfig) -> LayerMemory:
    from model_repository.engine.llama_cpp.context import (
        context_params,
        embedding_params,
        embedding_windows,
        model_path,
    )
    from model_repository.engine.llama_cpp.context_count import num_contexts
    from model_repository.engine.llama_cpp.devices import shares_of
    from model_repository.engine.llama_cpp.library import llama

    path, projector = model_path(config), config.artifact_dir / PROJECTOR
    model, logged = loaded_without_memory(path, config.gpu_layers, shares_of(config))
    if config.task is Task.GENERATE:
        num, is_f32 = num_contexts(config), config.precision == "f32"
        num_slots = -(-config.max_sequences // num)
        all_params = [context_params(num_slots, config.context_window, is_f32=is_f32)] * num
    else:
        all_params = [embedding_params(model, config, window) for window in embedding_windows(config)]
    for params in all_params:
        llama.LlamaContext(model, params)
    memory = memory_of("".join(logged), path)
    if not projector.exists():
        return memory
    from model_repository.engine.llama_cpp.image_prompts import load_projector

    logged.clear()
    load_projector(projector, model, 1, is_on_device=True)
    used = {name: projector.stat().st_size for name in _PROJECTOR.findall("".join(logged))}
    return msgspec.structs.replace(memory, num_copies=2, projector_bytes=Counter(used) + _buffers("".join(logged)))


def memory_of(log: str, path: Path) -> LayerMemory:
    """Return the memory of a model by the log of its load and its contexts. The layers of a cache share it equally."""
    devices = tuple(_LAYER.findall(log))
    cache_bytes, layers = [0.0] * len(devices), list[int]()
    for layer, size_mib in _CACHE.findall(log):
        if layer:
            layers.append(int(layer))
            continue
        for each in layers:
            cache_bytes[each] += float(size_mib) * 2**20 / len(layers)
        layers.clear()
    sizes, embedding_bytes = read_layer_bytes(path, len(devices))
    copied_bytes = embedding_bytes if log.count("loading tensor token_embd.weight\n") == _TIED else 0
    return LayerMemory(
        devices=devices,
        weight_bytes=(*sizes[:-1], sizes[-1] + copied_bytes),
        copied_bytes=copied_bytes,
        cache_bytes=tuple(map(round, cache_bytes)),
        buffer_bytes=_buffers(log) + Counter({name: _CONTEXT_BYTES.get(name.rstrip(digits), 0) for name in devices}),
    )


def _buffers(log: str) -> Counter[str]:
    sizes = Counter[str]()
    for name, size_mib in _BUFFER.findall(log):
        sizes[name] += round(float(size_mib) * 2**20)
    return sizes


if __name__ == "__main__":
    try:
        found = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineConfig, dec_hook=lambda kind, text: kind(text))
        sys.stdout.buffer.write(msgspec.json.encode(_load(found)))
    except Exception as exc:
        sys.exit(str(exc))
