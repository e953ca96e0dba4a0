"""From the parameters of a model to a loaded engine."""

from __future__ import annotations

import os

from model_repository.byte_table import FILE_NAME, load_byte_table
from model_repository.engine.adapter_control import restore_adapters
from model_repository.engine.emitter import Emitter
from model_repository.engine.engine import Engine
from model_repository.engine.runtime import EngineConfig, load_runtime
from model_repository.errors import EngineFailed
from model_repository.runtimes import RUNTIMES
from model_repository.system.cores import num_physical_cores
from model_repository.system.machine import read_machine, show_only, why_unfit

# The part of the time of a core for sending tokens: of one without a computing thread, and of one that computes. The
# second one is really 6 %: a batch costs a step 2 ms, eight times the emitter's cost.
IDLE_CORE_SHARE, BUSY_CORE_SHARE = 0.25, 0.0075
# Of one core, on a machine of any size: a single thread sends tokens.
MAX_SENDING_SHARE = 0.5


def load_engine(config: EngineConfig) -> Engine:
    """Load a model and return its engine, not started.

    Raises:
        EngineFailed: the model was built for another machine or of other files, or does not load.
    """
    if config.gpus:
        try:
            show_only(config.gpus, os.environ)  # the runtime's library and its processes read it later
        except IndexError as exc:
            raise EngineFailed(f"GPUs {list(config.gpus)}: CUDA_VISIBLE_DEVICES shows fewer") from exc
    # Before the runtime's own library is imported: this machine may not have it.
    if config.requires and (reason := why_unfit(config.requires, read_machine())):
        raise EngineFailed(f"{config.artifact_dir}: {reason}")
    config.check_files()
    byte_table = load_byte_table(config.artifact_dir / FILE_NAME)
    runtime = load_runtime(config, byte_table)
    if config.adapter_root is not None:
        try:
            restore_adapters(runtime, config.adapter_root)
        except EngineFailed:
            runtime.close()
            raise
    return Engine(config, runtime, byte_table, emitter=make_emitter(config, num_physical_cores()))


def make_emitter(config: EngineConfig, num_cores: int) -> Emitter:
    """Return an emitter that leaves enough of the cores to the runtime.

    Args:
        num_cores: physical ones, since a second hardware thread of a computing core is not idle.
    """
    computes = RUNTIMES[config.runtime].computes_on_cores
    num_busy = min(config.num_threads or num_cores, num_cores) if computes else 0
    max_share = IDLE_CORE_SHARE * (num_cores - num_busy) + BUSY_CORE_SHARE * num_busy
    return Emitter(max_share=min(max_share, MAX_SENDING_SHARE), max_wait_s=config.stream_interval_ms / 1e3)
