"""Loads the weights of a model, to the cores or to the devices of its plan."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from model_repository.contract.engine_file import note_share
from model_repository.engine.llama_cpp.devices import list_devices
from model_repository.engine.llama_cpp.library import llama, load_backends, model_params
from model_repository.engine.runtime import EngineConfig
from model_repository.errors import EngineFailed
from model_repository.system.devices import DeviceUse

logger = logging.getLogger(__name__)

# Devices multiply matrices of f32 in f16 or TF32, unless these forbid it. Read at the start of the first device.
_EXACT = {
    "GGML_VK_DISABLE_F16": "1",
    "GGML_VK_DISABLE_COOPMAT": "1",
    "GGML_VK_DISABLE_COOPMAT2": "1",
    "NVIDIA_TF32_OVERRIDE": "0",
}


def load_weights(path: Path, config: EngineConfig) -> llama.LlamaModel:
    """Load a GGUF file, or a split one by its first part, and tell the progress.

    Raises:
        EngineFailed: a device of the plan is not there.
        OSError, RuntimeError, ValueError or MemoryError: it does not load, or the load was stopped.
    """
    if config.gpu_layers:
        os.environ["GGML_NO_BACKTRACE"] = "1"  # a lost device aborts the process: a debugger would keep it for seconds
        if config.precision == "f32":
            os.environ.update(_EXACT)
    load_backends()
    params = model_params(config.gpu_layers, _shares(config.devices) if config.gpu_layers else ())
    params.progress_callback = note_share
    model = llama.LlamaModel(str(path), params)
    if config.gpu_layers:  # the first time, a driver takes up to minutes for the kernels
        logger.info("%d layers are on %s; kernels are compiled now", config.gpu_layers, ", ".join(config.devices))
    return model


def _shares(planned: Mapping[str, DeviceUse]) -> list[float]:
    """Return the weight of each device of this machine: 0 for one that the plan does not name.

    Raises:
        EngineFailed: a device of the plan is not there.
    """
    found = [device.name for device in list_devices()]
    if missing := sorted(planned.keys() - set(found)):
        has = f"has {', '.join(found)}" if found else "has no device"
        remedy = "start the server again, so that the model is planned for this machine"
        raise EngineFailed(f"planned for {', '.join(missing)}, llama.cpp {has} here: {remedy}")
    return [float(planned[name].total_bytes) if name in planned else 0.0 for name in found]
