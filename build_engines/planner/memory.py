"""The memory of a model on one GPU, as sums with terms for display."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from build_engines.architecture import Architecture, LayerKind, Matrix, Split, kv_heads_per_rank
from build_engines.model_entry import Precision
from build_engines.parallelism import Parallelism
from build_engines.sequence_memory import SequenceMemory
from model_repository.engine.tensorrt_llm.options import LOGIT_BYTES

# TensorRT-LLM's defaults.
KV_CACHE_SHARE = 0.9  # part of the memory that is free after the engine is loaded
TOKENS_PER_BLOCK = 32  # block of the paged cache
STATE_BYTES = 4  # a value of a recurrent layer's state

# Estimates. Tests compare them with published logs; we have not measured on a GPU.
ACTIVATION_BYTES = 3  # one live value: 2, and 1 more for TensorRT's overhead
SAMPLING_BYTES = 45  # logits and decoder, per sequence and word of the vocabulary; logs show 29, 33 and 45
CONTEXT_BYTES = 2_000_000_000  # the CUDA context, and the code of TensorRT and its libraries; logs show 0.8 to 3.2 GB
COMMUNICATION_BYTES = 1_000_000_000  # NCCL's and all-reduce's buffers, with more than one GPU; no log
# A CUDA graph "can use up to" this, says cuda_graph_config in TensorRT-LLM 1.2.1's TorchLlmArgs. Its pull request 12895
# has measured 10 MiB for DeepSeek-R1.
GRAPH_BYTES = 200_000_000


@dataclass(frozen=True, slots=True)
class Term:
    """One line of a sum: its value, and the arithmetic that gives it."""

    name: str
    formula: str  # numbers, `x`, `/` and `+`
    num_bytes: int


def num_bytes_of(terms: Iterable[Term]) -> int:
    """Return the sum of terms."""
    return sum(term.num_bytes for term in terms)


def gigabytes(num_bytes: int) -> str:
    """Write a number of bytes in decimal gigabytes."""
    return f"{num_bytes / 1e9:,.1f} GB"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
    """The memory of the fullest GPU in bytes. The parts add up to the total."""

    total_bytes: int
    weights: tuple[Term, ...]
    workspace: tuple[Term, ...]  # activations and logits
    reserve: tuple[Term, ...]  # the runtime's, independent of the model

    @property
    def weights_bytes(self) -> int:
        return num_bytes_of(self.weights)

    @property
    def workspace_bytes(self) -> int:
        return num_bytes_of(self.workspace)

    @property
    def reserve_bytes(self) -> int:
        return num_bytes_of(self.reserve)

    @property
    def room_bytes(self) -> int:
        """Memory without the engine; below 0, the engine does not fit."""
        return self.total_bytes - self.weights_bytes - self.workspace_bytes - self.reserve_bytes

    @property
    def kv_cache_bytes(self) -> int:
        """The part of the room that the runtime takes."""
        return max(0, int(self.room_bytes * KV_CACHE_SHARE))

    @property
    def free_bytes(self) -> int:
        """Unused memory; below 0, it is missing."""
        return self.room_bytes - self.kv_cache_bytes


def stage_weights(
    architecture: Architecture, parallelism: Parallelism, precision: Precision
) -> Iterator[tuple[Term, ...]]:
    """Yield the weights of one rank of each pipeline stage."""
    tp_size, num_stages = parallelism.tp_size, parallelism.pp_size
    layers_per_stage = architecture.num_layers // num_stages
    for stage in range(num_stages):
        layers = range(stage * layers_per_stage, (stage + 1) * layers_per_stage)
        matrices = Counter(matrix for layer in layers for matrix in architecture.layer_matrices(layer))
        if stage == 0:
            beside = (*architecture.per_layer_embeddings, *architecture.vision_matrices)
            matrices.update((architecture.embedding, *beside))
        if stage == num_stages - 1:
            matrices.update((architecture.final_norm, architecture.head))
        yield tuple(_matrix_term(matrix, count, architecture, tp_size, precision) for matrix, count in matrices.items())


def workspace(
    architecture: Architecture,
    tp_size: int,
    *,
    max_num_tokens: int,
    max_batch_size: int,
    has_context_logits: bool = False,
) -> tuple[Term, ...]:
    """Return the memory of a step: activations, sampling from the logits, images, and the logits of prompts.

    The residual stream, its norm and the tensors of the widest part of a layer are alive at the same time.
    """
    hidden_size, vocab_size = architecture.hidden_size, architecture.vocab_size
    widest = max(_attention_width(architecture, tp_size), _mlp_width(architecture, tp_size))
    activations = Term(
        "activations",
        f"{max_num_tokens} x (2 x {hidden_size} + {widest}) x {ACTIVATION_BYTES}",
        max_num_tokens * (2 * hidden_size + widest) * ACTIVATION_BYTES,
    )
    sampling = _product("sampling", max_batch_size, vocab_size, SAMPLING_BYTES)
    terms = [activations, sampling, *_image_workspace(architecture, max_num_tokens, max_batch_size)]
    if has_context_logits:
        terms.append(_product("logits of prompts", max_num_tokens, vocab_size, LOGIT_BYTES))
    return tuple(terms)


def _image_workspace(architecture: Architecture, max_num_tokens: int, max_batch_size: int) -> Iterator[Term]:
    """Yield the memory of a step that consists of images, and of the places of its prompts' tokens.

    Source: Qwen2-VL's model in TensorRT-LLM 1.2, which makes the rotations of all positions for each prompt.
    """
    vision = architecture.vision
    if vision is None:
        return
    width = 3 * vision.hidden_size + 2 * vision.intermediate_size
    yield _product("vision activations", max_num_tokens * vision.patches_per_token, width, ACTIVATION_BYTES)
    yield _product("rotations", max_batch_size, vision.max_positions, architecture.head_size, 4)


def reserve(num_gpus: int, num_graphs: int = 0) -> tuple[Term, ...]:
    """Return the memory of the runtime beside the engine."""
    terms = [_product("CUDA context", CONTEXT_BYTES)]
    if num_gpus > 1:
        terms.append(_product("communication", COMMUNICATION_BYTES))
    if num_graphs:
        terms.append(_product("CUDA graphs", num_graphs, GRAPH_BYTES))
    return tuple(terms)


def num_cuda_graphs(max_batch_size: int) -> int:
    """Return the number of CUDA graphs of the PyTorch backend with padding: of each size up to `max_batch_size`.

    Source: _generate_cuda_graph_batch_sizes in tensorrt_llm/llmapi/llm_args.py, since April 2026; 1.2.1 has fewer above
    128.
    """
    sizes = {1, 2, 4, *range(8, 128, 8), *range(128, max_batch_size, 64)}
    return len({size for size in sizes if size < max_batch_size}) + 1


def cache_term(architecture: Architecture, kind: LayerKind, parallelism: Parallelism, bytes_per_value: int) -> Term:
    """Return what the layers of a kind keep on one GPU: of one token, or of a sequence if they are recurrent."""
    num_layers = -(-architecture.num_cached_layers(kind) // parallelism.pp_size)
    latent, recurrence = architecture.latent_attention, architecture.recurrence
    if kind is LayerKind.RECURRENT and recurrence is not None:
        return _product("state", num_layers, -(-recurrence.num_state_values // parallelism.tp_size), STATE_BYTES)
    name = "per token in the window" if kind is LayerKind.SLIDING else "per token"
    if latent is not None:
        return _product(name, num_layers, latent.cached_sizes, bytes_per_value)
    heads = architecture.kv_heads(kind)
    num_heads = kv_heads_per_rank(heads.num_kv_heads, parallelism.tp_size)
    return _product(name, 2, num_layers, num_heads, heads.head_size, bytes_per_value)


def cache_terms(architecture: Architecture, parallelism: Parallelism, bytes_per_value: int) -> dict[LayerKind, Term]:
    """Return what each kind of layer keeps on one GPU."""
    kinds = (LayerKind.FULL, LayerKind.SLIDING, LayerKind.RECURRENT)
    found = {kind: cache_term(architecture, kind, parallelism, bytes_per_value) for kind in kinds}
    return {kind: term for kind, term in found.items() if term.num_bytes}


def sequence_memory(architecture: Architecture, terms: Mapping[LayerKind, Term]) -> SequenceMemory:
    """Return the memory of a sequence on one GPU from the terms of its layers."""
    sizes = {kind: terms[kind].num_bytes if kind in terms else 0 for kind in LayerKind}
    return SequenceMemory(
        bytes_per_token=sizes[LayerKind.FULL],
        window=architecture.sliding_window or 0,
        bytes_per_window_token=sizes[LayerKind.SLIDING],
        state_bytes=sizes[LayerKind.RECURRENT],
    )


def num_blocks(num_tokens: int) -> int:
    """Return the number of cache blocks for tokens of one sequence."""
    return -(-num_tokens // TOKENS_PER_BLOCK)


def _product(name: str, *factors: int | tuple[int, ...]) -> Term:
    """Return a product as a term; several numbers in place of a factor are its summands."""
    sums = [factor if isinstance(factor, tuple) else (factor,) for factor in factors]
    texts = [" + ".join(map(str, numbers)) for numbers in sums]
    formula = " x ".join(f"({text})" if "+" in text else text for text in texts)
    return Term(name, formula, math.prod(map(sum, sums)))


def _matrix_term(
    matrix: Matrix, num_layers: int, architecture: Architecture, tp_size: int, precision: Precision
) -> Term:
    is_quantized = matrix.is_expert if precision is Precision.MXFP4 else matrix.is_quantized
    bytes_per_value = precision.num_bytes if is_quantized else 2
    part, parts = _share(matrix.split, architecture, tp_size)
    num_values = math.ceil(matrix.num_values * part / parts)
    share = "" if parts == 1 else f" x {part} / {parts}"
    formula = f"{num_layers} x {matrix.num_values}{share} x {bytes_per_value}"
    return Term(matrix.name, formula, int(num_layers * num_values * bytes_per_value))


def _share(split: Split, architecture: Architecture, tp_size: int) -> tuple[int, int]:
    """Return a rank's part of a matrix, as numerator and denominator."""
    match split:
        case Split.COPIED:
            return 1, 1
        case Split.BY_RANK:
            return 1, tp_size
        case Split.BY_KV_HEAD:
            return kv_heads_per_rank(architecture.num_kv_heads, tp_size), architecture.num_kv_heads


def _attention_width(architecture: Architecture, tp_size: int) -> int:
    """Return the values per token of queries, keys, values and the result on one rank."""
    num_heads, latent = architecture.num_heads // tp_size, architecture.latent_attention
    if latent is None:
        num_kv_heads = kv_heads_per_rank(architecture.num_kv_heads, tp_size)
        return (2 * num_heads + 2 * num_kv_heads) * architecture.head_size
    per_head = 2 * (latent.qk_nope_head_size + latent.v_head_size) + latent.qk_rope_head_size
    return latent.q_lora_rank + sum(latent.cached_sizes) + num_heads * per_head


def _mlp_width(architecture: Architecture, tp_size: int) -> int:
    """Return the values per token of gate, up and the result on one rank."""
    dense = 2 * architecture.intermediate_size // tp_size + architecture.hidden_size
    experts = architecture.mixture_of_experts
    if experts is None:
        return dense
    num_experts = experts.num_experts_per_token + experts.num_shared_experts
    return max(dense, num_experts * (2 * experts.intermediate_size // tp_size + architecture.hidden_size))
