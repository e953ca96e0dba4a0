"""The plan of a model: its layout over GPUs, its memory, and its build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

from build_engines.architecture import LayerKind
from build_engines.gpus import Gpu
from build_engines.model_entry import Family, Fp8Method, ModelEntry, Precision
from build_engines.parallelism import Parallelism
from build_engines.planner.memory import (
    TOKENS_PER_BLOCK,
    GpuMemory,
    Term,
    num_blocks,
    num_bytes_of,
    sequence_memory,
    stage_weights,
)
from build_engines.sequence_memory import SequenceMemory
from model_repository.engine.tensorrt_llm.options import Backend

# With more weights the cache is small, and more GPUs of the node are better.
COMFORTABLE_WEIGHTS_SHARE = 2 / 3
# An estimate of the RAM of a conversion: the weights of the ranks that are converted at the same time, and some more.
RAM_SHARE_OF_WEIGHTS = 1.2
# The share of a GPU's memory that the weights may take while FP8 is calibrated. Activations need the rest.
CALIBRATION_SHARE = 0.92


class BuildTime(StrEnum):
    """The rough duration of a build. The only recorded figure: 20 to 35 minutes for the conversion of 471.5 GB."""

    MINUTES = "minutes"
    TENS_OF_MINUTES = "tens of minutes"
    HOURS = "hours"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The facts that decide the memory of a model in each of its layouts over GPUs of one kind."""

    entry: ModelEntry
    gpu: Gpu
    precision: Precision
    max_seq_len: int
    max_batch_size: int
    has_context_logits: bool = False  # an engine for the log probabilities of prompts
    has_fp8_checkpoint: bool = False
    has_cuda_graphs: bool = False  # those of the PyTorch backend

    def facts(self) -> dict[str, Any]:
        """Return these fields by name, without those of a subclass."""
        return {field.name: getattr(self, field.name) for field in fields(Workload)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Workload):
    """A layout of a model over GPUs, with its limits and sizes."""

    kv_precision: Precision
    parallelism: Parallelism
    max_num_tokens: int
    fp8_method: Fp8Method | None  # None: another precision
    memory: GpuMemory
    cache_terms: Mapping[LayerKind, Term]  # one GPU's, by kind of layer

    @property
    def max_input_len(self) -> int:
        """Limit of a prompt, which leaves room for one token."""
        return self.max_seq_len - 1

    @property
    def sequence_memory(self) -> SequenceMemory:
        """One sequence's on one GPU."""
        return sequence_memory(self.entry.architecture, self.cache_terms)

    @property
    def num_tokens_per_sequence(self) -> int:
        """Tokens of `max_seq_len` in whole blocks."""
        return num_blocks(self.max_seq_len) * TOKENS_PER_BLOCK

    @property
    def kv_bytes_per_sequence(self) -> int:
        """Bytes on one GPU, for a sequence of `max_seq_len` in whole blocks."""
        return self.sequence_memory.num_bytes(self.num_tokens_per_sequence)

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of all sequences together, if each has `max_seq_len`."""
        num_tokens = self.memory.kv_cache_bytes * self.num_tokens_per_sequence // self.kv_bytes_per_sequence
        return num_tokens // TOKENS_PER_BLOCK * TOKENS_PER_BLOCK

    @property
    def num_concurrent_sequences(self) -> int:
        """Sequences of `max_seq_len` in one step."""
        return min(self.max_batch_size, self.memory.kv_cache_bytes // self.kv_bytes_per_sequence)

    @property
    def fits(self) -> bool:
        """Whether the GPUs can serve a sequence of `max_seq_len`, and build the engine."""
        return self.num_concurrent_sequences > 0 and not self.lacks_calibration_memory

    @property
    def lacks_calibration_memory(self) -> bool:
        """Whether FP8 has to be calibrated, and the GPUs of a node do not hold the 16-bit model."""
        is_calibrated = self.fp8_method is Fp8Method.CALIBRATED
        return is_calibrated and not can_calibrate(self.entry, self.gpu, self.parallelism)

    @property
    def is_comfortable(self) -> bool:
        """Whether the cache has a useful share of the memory."""
        return self.memory.weights_bytes <= COMFORTABLE_WEIGHTS_SHARE * self.memory.total_bytes

    @property
    def checkpoint_bytes(self) -> int:
        """Size of the weights before conversion, which have 16 bits unless they are in NVFP4 already."""
        return self.entry.checkpoint_bytes if self.is_converted else self.engine_bytes

    @property
    def is_converted(self) -> bool:
        """Whether a build makes the matrices from others. NVFP4 and the models without an engine come ready."""
        return Backend.ENGINE in self.entry.backends and self.precision is not Precision.NVFP4

    @property
    def engine_bytes(self) -> int:
        """Size of the engines of all ranks."""
        stages = stage_weights(self.entry.architecture, self.parallelism, self.precision)
        return self.parallelism.tp_size * sum(map(num_bytes_of, stages))

    @property
    def build_disk_bytes(self) -> int:
        """Size of the checkpoint, the converted checkpoint and the engines together."""
        return self.checkpoint_bytes + 2 * self.engine_bytes if self.is_converted else self.checkpoint_bytes

    @property
    def build_ram_bytes(self) -> int:
        """Memory of the conversion on the CPU, if all ranks are converted at the same time."""
        return int(self.checkpoint_bytes * RAM_SHARE_OF_WEIGHTS) if self.is_converted else 0

    @property
    def max_host_cache_bytes(self) -> int:
        """Pinned memory of a node's machine with option kv_cache_manager=v2: at most that of the GPUs."""
        has_managers = Backend.PYTORCH in self.entry.backends
        return self.gpu.memory_bytes * self.parallelism.num_gpus_per_node if has_managers else 0

    @property
    def build_time_class(self) -> BuildTime:
        """An estimate from the size of the checkpoint."""
        if self.checkpoint_bytes < 60 * 10**9:
            return BuildTime.MINUTES
        return BuildTime.TENS_OF_MINUTES if self.checkpoint_bytes < 400 * 10**9 else BuildTime.HOURS


def fp8_method(entry: ModelEntry, gpu: Gpu, parallelism: Parallelism) -> Fp8Method:
    """Return how a 16-bit checkpoint becomes FP8: calibrated if possible, since that has the smaller KV cache."""
    is_rowwise = entry.family is Family.LLAMA and not can_calibrate(entry, gpu, parallelism)
    return Fp8Method.ROWWISE if is_rowwise else Fp8Method.CALIBRATED


def can_calibrate(entry: ModelEntry, gpu: Gpu, parallelism: Parallelism) -> bool:
    """Whether the GPUs of one node of a layout hold the 16-bit model."""
    room_bytes = CALIBRATION_SHARE * gpu.memory_bytes * parallelism.num_gpus_per_node
    return entry.checkpoint_bytes <= room_bytes
