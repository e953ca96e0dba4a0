"""The memory that a loaded replica of a model holds.

Estimates, by the sum of PSS of the processes of five models (Linux 6, CPython 3.12): within 10 % of it.
"""

from __future__ import annotations

from pathlib import Path

from build_engines.artifact import Manifest
from model_repository.byte_table import FILE_NAME as BYTE_TABLE
from model_repository.byte_table import vocabulary_size
from model_repository.engine.llama_cpp.context_count import num_contexts
from model_repository.model_parameters import ModelParameters
from model_repository.runtimes import PROJECTOR, RUNTIMES

_PROCESS_BYTES = 30 << 20  # Python, numpy and the own libraries of a process
_TOKENIZER_FACTOR = 40  # size of a loaded tokenizer and its grammar checker, in sizes of tokenizer.json
_TOKEN_BYTES = 800  # of the vocabulary, in each other stage: its text, and its place in grammars
_LOGIT_BYTES = 3 * 4  # in the step's buffer, in that of the output, and a copy to draw from
# Of artifacts without the figure: buffers of a context. Those of SmolLM2 135M have 14 MB, those of models of 8B 60 MB.
_UNKNOWN_BUFFER_BYTES, _UNKNOWN_BUFFER_SHARE = 16 << 20, 1 / 64


def replica_bytes(manifest: Manifest, parameters: ModelParameters, num_tokenizers: int) -> int:
    """Return the memory of one replica, of GPUs if the model needs some; 0: unknown.

    Weights count once: llama.cpp maps their file, and reads a part that it has repacked for this processor no more.
    Scores of prompts (`echo` with `logprobs`) may take more: the logits of whole steps.

    Args:
        parameters: those of the replica, with its window and its number of sequences.
        num_tokenizers: processes of the tokenizer stage.
    """
    runtime, folder, memory = RUNTIMES[parameters.runtime], parameters.artifact_dir, manifest.sequence_memory
    if runtime.needs_gpus:
        return manifest.gpu_bytes
    if not runtime.reads_gguf:
        return _stage_bytes(parameters, num_tokenizers)
    if memory is None:
        return 0
    weights_bytes = sum(path.stat().st_size for path in folder.rglob("*.gguf"))
    engine_bytes = weights_bytes + _stage_bytes(parameters, num_tokenizers)
    if memory.step_bytes:
        return engine_bytes + memory.step_bytes
    num, num_slots, window = num_contexts(parameters), parameters.max_sequences, parameters.context_window
    if (folder / PROJECTOR).exists():  # a further context, in a process of its own; all have as many slots
        num_slots = (num + 1) * -(-num_slots // num)
        num += 1
        engine_bytes += 2 * _PROCESS_BYTES
    buffer_bytes = memory.buffer_bytes_for(window) or _UNKNOWN_BUFFER_BYTES + int(weights_bytes * _UNKNOWN_BUFFER_SHARE)
    logits_bytes = _LOGIT_BYTES * _vocabulary_size(folder)
    return engine_bytes + num * buffer_bytes + num_slots * (memory.num_bytes(window) + logits_bytes)


def _stage_bytes(parameters: ModelParameters, num_tokenizers: int) -> int:
    """Return the memory of the processes of all stages without the weights and their caches."""
    folder = parameters.artifact_dir
    # A tokenizer has small processes of its own, together as large as one of a stage.
    num_processes = len(parameters.layout.stages) - 1 + 2 * num_tokenizers
    tokenizer_bytes = _TOKENIZER_FACTOR * sum(path.stat().st_size for path in folder.glob("tokenizer/tokenizer.json"))
    vocabulary_bytes = (len(parameters.layout.stages) - 1) * _TOKEN_BYTES * _vocabulary_size(folder)
    return num_processes * _PROCESS_BYTES + num_tokenizers * tokenizer_bytes + vocabulary_bytes


def _vocabulary_size(folder: Path) -> int:
    return sum(map(vocabulary_size, folder.glob(BYTE_TABLE)))
