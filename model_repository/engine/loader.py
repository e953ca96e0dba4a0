"""From the parameters of the engine's config.pbtxt to a loaded engine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.engine.adapter_control import restore_adapters
from model_repository.engine.adapters.root import AdapterRoot
from model_repository.engine.emitter import Emitter
from model_repository.engine.engine import Engine
from model_repository.engine.runtime import RUNTIMES, EngineConfig, load_runtime
from model_repository.errors import EngineFailed
from model_repository.system.cores import num_cores
from model_repository.system.linked_file import LinkedFile
from model_repository.system.machine import read_machine, show_only, why_unfit

# Of one core, on a machine of any size: a single thread sends tokens.
MAX_SENDING_SHARE = 0.5


def read_engine_config(parameters: Mapping[str, str]) -> EngineConfig:
    """Return the engine's configuration.

    Only `adapters` (JSON, name to path in the artifact), `adapter_root` (JSON, of an AdapterRoot), `requires` (JSON, of
    the machine) and `linked_files` (JSON, name to a LinkedFile) may be missing. Another missing parameter is a bug of
    `render`: KeyError.
    """
    artifact_dir = Path(parameters["artifact_dir"])
    adapters: dict[str, str] = json.loads(parameters.get("adapters", "{}"))
    return EngineConfig(
        runtime=parameters["runtime"],
        artifact_dir=artifact_dir,
        context_window=int(parameters["context_window"]),
        eos_token_ids=frozenset(json.loads(parameters["eos_token_ids"])),
        max_sequences=int(parameters["max_sequences"]),
        max_waiting=int(parameters["max_waiting"]),
        num_threads=int(parameters["num_threads"]),
        stream_interval_ms=int(parameters["stream_interval_ms"]),
        precision=parameters["precision"],
        options=json.loads(parameters["runtime_options"]),
        adapters={name: artifact_dir / path for name, path in adapters.items()},
        adapter_root=AdapterRoot.from_parameters(parameters),
        requires=json.loads(parameters.get("requires", "{}")),
        linked_files={
            name: LinkedFile(**file) for name, file in json.loads(parameters.get("linked_files", "{}")).items()
        },
    )


def load_engine(parameters: Mapping[str, str]) -> Engine:
    """Load the model that the parameters name and return its engine, not started.

    Raises:
        EngineFailed: the model was built for another machine or of other files, or does not load.
    """
    config = read_engine_config(parameters)
    if gpus := json.loads(parameters.get("gpus", "[]")):
        try:
            show_only(gpus, os.environ)  # before the runtime's library is imported, and starts processes
        except IndexError as exc:
            raise EngineFailed(f"GPUs {gpus}: CUDA_VISIBLE_DEVICES shows fewer") from exc
    # Before the runtime's own library is imported: this machine may not have it.
    if config.requires and (reason := why_unfit(config.requires, read_machine())):
        raise EngineFailed(f"{config.artifact_dir}: {reason}")
    config.check_files()
    byte_table = load_byte_table(config.artifact_dir / FILE_NAME)
    runtime = load_runtime(config, byte_table)
    if config.adapter_root is not None:
        restore_adapters(runtime, config.adapter_root)
    emitter, max_steps_ahead = make_emitter(config, num_cores()), RUNTIMES[config.runtime].max_steps_ahead
    return Engine(config, runtime, byte_table, emitter=emitter, max_steps_ahead=max_steps_ahead)


def make_emitter(config: EngineConfig, num_cores: int) -> Emitter:
    """Return an emitter that leaves enough of the cores to the runtime."""
    max_share = RUNTIMES[config.runtime].max_sending_share * num_cores
    return Emitter(max_share=min(max_share, MAX_SENDING_SHARE), max_wait_s=config.stream_interval_ms / 1e3)
