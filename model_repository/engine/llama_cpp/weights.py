"""Loads the weights of a model, to the cores or to the devices of its plan."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from model_repository.contract.engine_file import note_share
from model_repository.engine.llama_cpp.devices import shares_of
from model_repository.engine.llama_cpp.library import llama, load_backends, model_params
from model_repository.engine.runtime import EngineConfig

logger = logging.getLogger(__name__)

# Devices multiply matrices of f32 in f16 or TF32, unless these forbid it. Read at the start of the first device.
EXACT = {
    "GGML_VK_DISABLE_F16": "1",
    "GGML_VK_DISABLE_COOPMAT": "1",
    "GGML_VK_DISABLE_COOPMAT2": "1",
    "NVIDIA_TF32_OVERRIDE": "0",
}


def load_weights(path: Path, config: EngineConfig) -> llama.LlamaModel:
    """Load a GGUF file, or a split one by its first part, and tell the progress.

    Raises:
        EngineFailed: the devices of the plan are not there, or are some of several.
        OSError, RuntimeError, ValueError or MemoryError: it does not load, or the load was stopped.
    """
    if config.gpu_layers:
        os.environ["GGML_NO_BACKTRACE"] = "1"  # a lost device aborts the process: a debugger would keep it for seconds
        if config.precision == "f32":
            os.environ.update(EXACT)
    load_backends()
    params = model_params(config.gpu_layers, shares_of(config))
    params.progress_callback = note_share
    model = llama.LlamaModel(str(path), params)
    if config.gpu_layers:  # the first time, a driver takes up to minutes for the kernels
        logger.info("%d layers are on %s; kernels are compiled now", config.gpu_layers, ", ".join(config.devices))
    return model
