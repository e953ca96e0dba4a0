"""The part of a model that fits a graphics card, with llama.cpp: estimates from the numbers of the architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from build_engines.architecture import Architecture, Matrix
from build_engines.errors import BuildError
from build_engines.graphics_cards.cards import Card
from build_engines.memory_fit import SHARE, ModelDemand, fit
from build_engines.model_entry import ModelEntry
from build_engines.model_source import CONVERTED
from build_engines.parallelism import Parallelism
from build_engines.planner.memory import cache_terms, num_bytes_of, sequence_memory, workspace
from build_engines.sequence_memory import SequenceMemory
from model_repository.engine.llama_cpp.context_count import MAX_STEP_TOKENS
from model_repository.model_facts import Task

_MAX_SEQUENCES = 16  # as `serve` has it
_KV_BYTES = 2  # f16
_F32_BITS = 32  # of norms, biases and routers
_PROJECTOR_BITS = 16


class _Bits(NamedTuple):
    """The bits of a value, with the scales of its block. Source: the blocks of llama.cpp's ggml-common.h."""

    matrices: float
    experts: float
    head: float
    table: float  # of input embeddings that are not tied


# Q4_K_M has 4.5 bits in most matrices, and 6.5625 in half of those behind values and in the networks' last ones.
_BITS: Mapping[str, _Bits] = {
    "f16": _Bits(16, 16, 16, 16),
    "q8_0": _Bits(8.5, 8.5, 8.5, 8.5),
    "q4_k_m": _Bits(4.8, 4.8, 6.5625, 4.5),
    "q6_k": _Bits(6.5625, 6.5625, 6.5625, 6.5625),
    "q5_k_m": _Bits(5.7, 5.7, 6.5625, 5.5),
    "mxfp4": _Bits(8.5, 4.25, 8.5, 8.5),
}
_USUAL = "q4_k_m"  # the variant of a GGUF file that is taken where none is named
_UNKNOWN = "q8_0"  # the sizes of a variant that is not listed: at least its own


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFit:
    """The split of a model between a card and the cores."""

    entry: ModelEntry
    card: Card
    quantization: str
    num_layers: int  # that the card computes, from the last one
    num_sequences: int
    window: int
    weights_bytes: int  # on the card
    buffers_bytes: int  # of a step, on the card
    caches_bytes: int  # on the card
    cpu_weights_bytes: int
    cpu_caches_bytes: int

    @property
    def total_layers(self) -> int:
        """All layers, as llama.cpp counts them: the output is one."""
        return self.entry.architecture.num_layers + 1

    @property
    def is_whole(self) -> bool:
        """Whether the card computes all layers."""
        return self.num_layers == self.total_layers

    @property
    def card_bytes(self) -> int:
        """The memory that the card gives."""
        return self.weights_bytes + self.buffers_bytes + self.caches_bytes

    @property
    def command(self) -> str:
        """The command that serves these weights. A repository of the hub may lack the file that it names."""
        entry = self.entry
        if entry.gguf is None and entry.architecture.class_name in CONVERTED:
            option = "" if self.quantization == "f16" else f" --precision {self.quantization}"
            return f"conch serve {entry.tag}{option}"
        if self.quantization in served_quantizations(entry):
            return f"conch serve {entry.tag}"
        repository = (entry.gguf or entry.model_id).partition(":")[0]
        return f"conch serve {repository}:{self.quantization.upper()}"


def quantizations(entry: ModelEntry) -> Sequence[str]:
    """Return the quantizations of a model that are planned, the most precise first."""
    served = served_quantizations(entry)
    return served if "mxfp4" in served else ("f16", "q8_0", "q4_k_m")


def served_quantizations(entry: ModelEntry) -> Sequence[str]:
    """Return the quantizations that `serve` takes for the name of a model, the most precise first."""
    if entry.gguf is not None:
        variant = entry.gguf.rpartition(":")[2].lower()
        return (next((name for name in _BITS if variant.endswith(name)), _UNKNOWN),)
    return ("f16", "q8_0", "q4_k_m") if entry.architecture.class_name in CONVERTED else (_USUAL,)


def fit_card(
    entry: ModelEntry, quantization: str, card: Card, *, max_window: int | None = None, max_sequences: int | None = None
) -> CardFit:
    """Return the split of a model, by the rule of the CPU: weights and caches take SHARE of the memory.

    Raises:
        BuildError: a limit is below 1.
    """
    for name, limit in (("--max-seq-len", max_window), ("--max-batch-size", max_sequences)):
        if limit is not None and limit < 1:
            raise BuildError(f"{name} {limit}: expected at least 1")
    architecture, bits, generates = entry.architecture, _BITS[quantization], entry.task == Task.GENERATE
    weights = _weights_by_layers(architecture, bits, has_head=generates)
    buffers_bytes = num_bytes_of(
        workspace(architecture, 1, max_num_tokens=MAX_STEP_TOKENS, max_batch_size=0, has_context_logits=generates)
    )
    demand = ModelDemand(
        weight_bytes=weights[-1] + buffers_bytes,
        sequence_memory=_sequence_memory(architecture) if generates else SequenceMemory(step_bytes=1),
        num_sequences=max_sequences or _MAX_SEQUENCES,
        window=min(entry.seq_len_limit, max_window or entry.seq_len_limit),
    )
    num_sequences, window, caches_bytes = _caches(demand, card)
    room_bytes = int(SHARE * card.memory_bytes) - buffers_bytes
    if weights[-1] + caches_bytes > room_bytes:
        num_sequences, window, caches_bytes = _caches(replace(demand, weight_bytes=0), card)
    caches = [caches_bytes * number // architecture.num_layers for number in range(len(weights))]
    fitting = [pair for pair in zip(weights, caches, strict=True) if sum(pair) <= room_bytes]
    weights_bytes, on_card_bytes = fitting[-1] if fitting else (0, 0)
    return CardFit(
        entry=entry,
        card=card,
        quantization=quantization,
        num_layers=len(fitting),
        num_sequences=num_sequences,
        window=window,
        weights_bytes=weights_bytes,
        buffers_bytes=buffers_bytes if fitting else 0,
        caches_bytes=on_card_bytes,
        cpu_weights_bytes=_tables_bytes(architecture, bits) + weights[-1] - weights_bytes,
        cpu_caches_bytes=caches_bytes - on_card_bytes,
    )


def best_fit(entry: ModelEntry, card: Card) -> CardFit:
    """Return the split of the most precise weights that `serve` takes and that fit whole, or else of the smallest."""
    fits = [fit_card(entry, name, card) for name in served_quantizations(entry)]
    return next((fit for fit in fits if fit.is_whole), fits[-1])


def _caches(demand: ModelDemand, card: Card) -> tuple[int, int, int]:
    """Return the sequences and the window that the memory of a card holds, and the size of their caches."""
    [(num_sequences, window)] = fit([demand], card.memory_bytes, demand.num_sequences)
    return num_sequences, window, demand.fitted(num_sequences, window).cache_bytes


def _weights_by_layers(architecture: Architecture, bits: _Bits, *, has_head: bool) -> list[int]:
    """Return the weights on a card with one layer, with two, and so on: the output is the first, then the last blocks.

    The projector of images is on the card too.
    """
    layers = [
        _bytes_of([each for each in architecture.layer_matrices(layer) if not each.is_derived], bits, _F32_BITS)
        for layer in range(architecture.num_layers)
    ]
    head_bytes = _bytes_of([architecture.head, architecture.final_norm], bits, bits.head) if has_head else 0
    projector_bytes = _bytes_of(architecture.vision_matrices, bits, _PROJECTOR_BITS)
    return list(accumulate(reversed(layers), initial=projector_bytes + head_bytes))


def _tables_bytes(architecture: Architecture, bits: _Bits) -> int:
    """Return the size of the input embeddings, which llama.cpp leaves to the cores."""
    table_bits = bits.head if architecture.has_tied_embeddings else bits.table
    return _bytes_of([architecture.embedding, *architecture.per_layer_embeddings], bits, table_bits)


def _sequence_memory(architecture: Architecture) -> SequenceMemory:
    """Return the memory of a sequence. The engine lets layers with a sliding window keep all tokens."""
    found = sequence_memory(architecture, cache_terms(architecture, Parallelism(), _KV_BYTES))
    per_token = found.bytes_per_token + found.bytes_per_window_token
    return SequenceMemory(bytes_per_token=per_token, state_bytes=found.state_bytes)


def _bytes_of(matrices: Sequence[Matrix], bits: _Bits, other_bits: float) -> int:
    """Return the size of matrices.

    Args:
        other_bits: of those that TensorRT-LLM does not quantize.
    """
    num_bits = 0.0
    for matrix in matrices:
        quantized_bits = bits.experts if matrix.is_expert else bits.matrices
        num_bits += matrix.num_values * (quantized_bits if matrix.is_quantized else other_bits)
    return int(num_bits / 8)
