"""Tries whether llama.cpp loads a model, in a process of its own: some files make the library end the process.

Run as a program: `python -m build_engines.llama_cpp.trial_load f16|f32 MODEL POOLING WINDOW [PROJECTOR]`. It prints the
memory of a sequence, or with a POOLING that of the steps, in JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError
from build_engines.sequence_memory import SequenceMemory
from model_repository.engine.llama_cpp.context_count import MAX_STEP_TOKENS
from model_repository.engine.runtime import EngineConfig
from model_repository.system.llama_build import installed_build

_ERROR = 4  # ggml.h: enum ggml_log_level
_LOGIT_BYTES = 4
# A window longer than those of layers with a sliding window, and enough sequences for sizes of many hundredths of MiB.
NUM_SEQUENCES, WINDOW = 16, 16384
# llama.cpp's log has one line for each cache: of keys and values with the tokens of a sequence, or of states.
_CACHE = re.compile(r"llama_(kv_cache|memory_recurrent): size = +([\d.]+) MiB \( *(\d+) cells")
_BUFFER = re.compile(r"compute buffer size = +([\d.]+) MiB")  # of a step


def check_loads(
    name: str, model: Path, projector: Path | None, pooling: str = "", window: int = WINDOW, *, is_f32: bool = False
) -> SequenceMemory | None:
    """Check that llama.cpp loads a model, if it is installed, and return the memory of a sequence or of the steps.

    Neither weights nor caches are allocated.

    Args:
        name: of the model, for the error.
        model: a GGUF file, or the first of a split model.
        projector: a GGUF file with which the model reads images.
        pooling: see EngineConfig.
        window: tokens of the longest prompt that the model embeds.
        is_f32: the KV cache is in f32, not in f16.

    Raises:
        BuildError: it does not; with llama.cpp's reason.
    """
    if installed_build() is None:
        return None
    precision, projectors = "f32" if is_f32 else "f16", [] if projector is None else [str(projector)]
    arguments = (precision, str(model), pooling, str(window), *projectors)
    return SequenceMemory(**json.loads(output_of(__name__, name, *arguments)))


def output_of(program: str, name: str, *arguments: str, written: str = "") -> str:
    """Return the output of a program that loads a model.

    Args:
        program: a module.
        name: of the model, for the error.
        written: its input.

    Raises:
        BuildError: the model does not load; with llama.cpp's reason.
    """
    command = [sys.executable, "-P", "-m", program, *arguments]
    environment = os.environ | {"GGML_NO_BACKTRACE": "1"}
    done = subprocess.run(
        command, env=environment, input=written, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        lines = [f"status {done.returncode}", *filter(None, done.stderr.splitlines())]
        reason = next((line for line in lines if "error" in line), lines[-1])
        raise BuildError(f"{name}: llama.cpp does not load it: {reason}")
    return done.stdout


def loaded_without_memory(model: Path, gpu_layers: int = 0, shares: Sequence[float] = ()) -> tuple[Any, list[str]]:
    """Return a model without memory for its weights and contexts, and the log, which goes on with its contexts."""
    from model_repository.engine.llama_cpp.library import llama, load_backends, model_params

    logged: list[str] = []

    def log(level: int, text: str) -> None:
        logged.append(text)
        if level == _ERROR:
            sys.stderr.write(text)
            sys.stderr.flush()

    load_backends()
    llama.set_log_callback(log)
    params = model_params(gpu_layers, shares)
    params.no_alloc, params.load_mode = True, 0  # llama_load_mode: none
    return llama.LlamaModel(str(model), params), logged


def _load(precision: str, model: str, pooling: str, window: str, projector: str | None = None) -> SequenceMemory:
    from model_repository.engine.llama_cpp.context import context_params, embedding_params, embedding_windows
    from model_repository.engine.llama_cpp.library import llama

    loaded, logged = loaded_without_memory(Path(model))
    if projector is not None:
        from model_repository.engine.llama_cpp.image_prompts import load_projector

        load_projector(Path(projector), loaded, 1)
    is_f32 = precision == "f32"
    if pooling:
        config = EngineConfig(
            runtime="llama_cpp",
            artifact_dir=Path(model).parent,
            context_window=int(window),
            eos_token_ids=frozenset(),
            max_sequences=NUM_SEQUENCES,
            precision=precision,
            pooling=pooling,
        )
        for each in embedding_windows(config):
            llama.LlamaContext(loaded, embedding_params(loaded, config, each))
        return SequenceMemory(step_bytes=_step_bytes_of("".join(logged)))
    sizes = []
    for each in (WINDOW // 2, WINDOW):
        logged.clear()
        llama.LlamaContext(loaded, context_params(NUM_SEQUENCES, each, is_f32=is_f32))
        sizes.append(_buffer_bytes("".join(logged)))
    logits_bytes = MAX_STEP_TOKENS * loaded.get_vocab().n_vocab * _LOGIT_BYTES
    return dataclasses.replace(sequence_memory_of("".join(logged)), **_buffers_of(*sizes, logits_bytes=logits_bytes))


def _buffers_of(half_bytes: int, whole_bytes: int, *, logits_bytes: int) -> dict[str, int]:
    """Return the sizes of a context's buffers, by those of contexts with WINDOW // 2 and WINDOW tokens.

    The buffers have room for the logits of a whole step. Only the rows of sampled tokens are written: the others, as
    memory that is never touched, take none.
    """
    per_token = max(0, whole_bytes - half_bytes) // (WINDOW // 2)
    least_bytes = max(1, whole_bytes - WINDOW * per_token - logits_bytes)
    return {"buffer_bytes": least_bytes, "buffer_bytes_per_token": per_token}


def _step_bytes_of(log: str) -> int:
    """Return the memory of steps by the log of contexts that embed: their buffers, and a decoder's KV caches."""
    return _buffer_bytes(log) + round(sum(float(size_mib) for _, size_mib, _ in _CACHE.findall(log)) * 2**20)


def _buffer_bytes(log: str) -> int:
    return round(sum(map(float, _BUFFER.findall(log))) * 2**20)


def sequence_memory_of(log: str) -> SequenceMemory:
    """Return the memory of a sequence by the log of a context with NUM_SEQUENCES of WINDOW tokens."""
    per_token = window = per_window_token = state = 0.0
    for kind, size_mib, cells in _CACHE.findall(log):
        num_bytes, num_cells = float(size_mib) * 2**20 / NUM_SEQUENCES, int(cells)
        if kind == "memory_recurrent":
            state += num_bytes
        elif num_cells == WINDOW:
            per_token += num_bytes / num_cells
        else:
            window, per_window_token = num_cells, num_bytes / num_cells
    sizes = {"bytes_per_token": per_token, "window": window, "bytes_per_window_token": per_window_token}
    return SequenceMemory(**{name: round(size) for name, size in (sizes | {"state_bytes": state}).items()})


if __name__ == "__main__":
    try:
        json.dump(dataclasses.asdict(_load(*sys.argv[1:])), sys.stdout)
    except Exception as exc:
        sys.exit(str(exc))
