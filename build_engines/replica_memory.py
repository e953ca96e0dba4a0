"""The memory that a loaded replica of a model on a CPU holds.

The constants are of the sum of PSS of the processes of five models, on Linux with CPython 3.12.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from build_engines.artifact import Manifest
from build_engines.llama_cpp.device_trial import LayerMemory
from build_engines.sequence_memory import SequenceMemory
from model_repository.byte_table import FILE_NAME as BYTE_TABLE
from model_repository.byte_table import vocabulary_size
from model_repository.contract.tensors import ENCODER, GENERATOR
from model_repository.engine.llama_cpp.context_count import usual_contexts
from model_repository.model_facts import Task
from model_repository.runtimes import PROJECTOR, RUNTIMES
from model_repository.system.cores import num_physical_cores

_PROCESS_BYTES = 28 << 20  # Python, numpy and the own libraries of a process
_TOKENIZER_FACTOR = 40  # size of a loaded tokenizer and its grammar checker, in sizes of tokenizer.json
_TOKEN_BYTES = 800  # of the vocabulary, in each other stage: its text, and its place in grammars
_LOGIT_BYTES = 3 * 4  # in the step's buffer, in that of the output, and a copy to draw from
# Of artifacts without the figure: buffers of a context. Those of SmolLM2 135M have 14 MB, those of models of 8B 60 MB.
_UNKNOWN_BUFFER_BYTES, _UNKNOWN_BUFFER_SHARE = 16 << 20, 1 / 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMemory:
    """The memory of a replica, by its sequences and its window.

    Weights count once: llama.cpp maps their file, and reads a part that it has repacked for the processor no more.
    Scores of prompts (`echo` with `logprobs`) may take more: the logits of whole steps.
    """

    weight_bytes: int
    process_bytes: int  # of all stages, without weights, caches and buffers
    sequence_memory: SequenceMemory
    vocabulary_size: int
    num_contexts: int | None  # None: as many as usual
    num_threads: int
    has_images: bool

    @classmethod
    def of(cls, manifest: Manifest, folder: Path, num_tokenizers: int, num_threads: int = 0) -> ReplicaMemory | None:
        """Return that of an artifact; None: unknown.

        Args:
            num_tokenizers: processes of the tokenizer stage.
            num_threads: of the engine; 0: one for each core.
        """
        runtime, memory = RUNTIMES[manifest.runtime], manifest.sequence_memory
        if runtime.needs_gpus or (runtime.reads_gguf and memory is None):
            return None
        num_tokens = sum(map(vocabulary_size, folder.glob(BYTE_TABLE)))
        num_others = len((GENERATOR if manifest.task is Task.GENERATE else ENCODER).stages) - 1
        has_images = (folder / PROJECTOR).exists()
        # A tokenizer has small processes of its own, together as large as one of a stage.
        num_processes = num_others + 2 * num_tokenizers + 2 * has_images
        tokenizer_bytes = sum(path.stat().st_size for path in folder.glob("tokenizer/tokenizer.json"))
        return cls(
            weight_bytes=sum(path.stat().st_size for path in folder.rglob("*.gguf")),
            process_bytes=num_processes * _PROCESS_BYTES
            + num_tokenizers * _TOKENIZER_FACTOR * tokenizer_bytes
            + num_others * _TOKEN_BYTES * num_tokens,
            sequence_memory=memory or SequenceMemory(step_bytes=1),
            vocabulary_size=num_tokens,
            num_contexts=int(manifest.options["contexts"]) if "contexts" in manifest.options else None,
            num_threads=num_threads or num_physical_cores(),
            has_images=has_images,
        )

    def num_bytes(self, num_sequences: int, window: int) -> int:
        """Return the size with this number of sequences, each with this number of tokens."""
        memory, fixed_bytes = self.sequence_memory, self.weight_bytes + self.process_bytes
        if memory.step_bytes:
            return fixed_bytes + memory.step_bytes
        num_contexts = self.num_contexts or usual_contexts(self.weight_bytes, self.num_threads, num_sequences)
        if self.has_images:  # a further context, in a process of its own; all have as many slots
            num_sequences = (num_contexts + 1) * -(-num_sequences // num_contexts)
            num_contexts += 1
        unknown_bytes = _UNKNOWN_BUFFER_BYTES + int(self.weight_bytes * _UNKNOWN_BUFFER_SHARE)
        buffer_bytes = memory.buffer_bytes_for(window) or unknown_bytes
        sequence_bytes = memory.num_bytes(window) + _LOGIT_BYTES * self.vocabulary_size
        return fixed_bytes + num_contexts * buffer_bytes + num_sequences * sequence_bytes

    def bytes_beside(self, memory: LayerMemory, gpu_layers: int, devices: Collection[str], num_sequences: int) -> int:
        """Return the size without the part that devices have.

        Args:
            gpu_layers: the number of layers, from the last one, on devices.
            devices: their names.
        """
        num_on_cores = memory.num_layers - gpu_layers
        weight_bytes = self.weight_bytes - sum(memory.weight_bytes[num_on_cores:]) + memory.copied_bytes
        buffer_bytes = sum(size for name, size in memory.buffer_bytes.items() if name not in devices)
        own_bytes = memory.num_copies * (sum(memory.cache_bytes[:num_on_cores]) + buffer_bytes)
        return self.process_bytes + weight_bytes + own_bytes + num_sequences * _LOGIT_BYTES * self.vocabulary_size
