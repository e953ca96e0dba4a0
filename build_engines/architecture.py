"""The shape of a decoder-only transformer: its configuration numbers, its matrices, its KV cache per token."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import Annotated, NamedTuple

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

CHECKED = ConfigDict(extra="forbid")  # unknown keys of a file are errors
Count = Annotated[int, Field(strict=True, gt=0)]
Flag = Annotated[bool, Field(strict=True)]


class Split(Enum):
    """How tensor parallelism lays a matrix out."""

    COPIED = auto()  # whole on every rank
    BY_RANK = auto()  # a part for each rank
    BY_KV_HEAD = auto()  # a part for each rank; with more ranks than key-value heads, a head is on several ranks


class Matrix(NamedTuple):
    """Weights of one name in one layer, or beside the layers."""

    name: str
    num_values: int
    split: Split
    is_quantized: bool = True  # FP8; otherwise 16 bit
    is_derived: bool = False  # not in the checkpoint: computed by the conversion


@dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class LatentAttention:
    """The numbers of multi-head latent attention, which caches one compressed vector per token and layer."""

    kv_lora_rank: Count
    q_lora_rank: Count
    qk_nope_head_size: Count
    qk_rope_head_size: Count
    v_head_size: Count

    @property
    def cached_size(self) -> int:
        """Values in the cache per token and layer, on every rank: a latent vector is not split by heads."""
        return self.kv_lora_rank + self.qk_rope_head_size


@dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class MixtureOfExperts:
    """The numbers of layers in which a router sends each token to a few experts."""

    num_routed_experts: Count
    num_shared_experts: Count
    num_experts_per_token: Count
    intermediate_size: Count  # one expert's
    num_dense_layers: Annotated[int, Field(strict=True, ge=0)] = 0  # the first layers, which have no experts
    num_groups: Count = 1


@dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class VisionTower:
    """The numbers of the vision transformer of Qwen2.5-VL, which makes tokens of the language model from an image."""

    num_layers: Count
    hidden_size: Count
    intermediate_size: Count
    patch_size: Count  # pixels of a side
    merge_size: Count  # patches of a token's side
    max_positions: Count  # `max_position_embeddings`: a prompt has rotations for all of them

    @property
    def patches_per_token(self) -> int:
        """Patches that become one token of the language model."""
        return self.merge_size**2

    def num_parameters(self, output_size: int) -> int:
        """Return its values; `output_size` is the hidden size of the language model."""
        size, inner = self.hidden_size, self.intermediate_size
        attention = 4 * size * size + 4 * size
        mlp = 3 * size * inner + 2 * inner + size
        merged = size * self.patches_per_token
        merger = size + merged * merged + merged + merged * output_size + output_size
        patches = 2 * 3 * self.patch_size**2 * size  # two frames of a video; an image is both
        return patches + self.num_layers * (attention + mlp + 2 * size) + merger


@dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class Architecture:
    """The configuration numbers of a model, as its config.json has them."""

    class_name: Annotated[str, Field(min_length=1)]  # `architectures` of config.json
    num_layers: Count
    hidden_size: Count
    num_heads: Count
    num_kv_heads: Count
    head_size: Count  # a query's and a key's
    intermediate_size: Count
    vocab_size: Count
    has_tied_embeddings: Flag = False
    has_qkv_bias: Flag = False
    num_norms_per_layer: Count = 2  # vectors of the hidden size
    latent_attention: LatentAttention | None = None
    mixture_of_experts: MixtureOfExperts | None = None
    vision: VisionTower | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads: {self.num_heads}: must be a multiple of num_kv_heads ({self.num_kv_heads})")
        experts = self.mixture_of_experts
        if experts is not None and experts.num_dense_layers > self.num_layers:
            num_dense = f"mixture_of_experts.num_dense_layers: {experts.num_dense_layers}"
            raise ValueError(f"{num_dense}: must be at most num_layers ({self.num_layers})")

    @property
    def num_parameters(self) -> int:
        """Values in the checkpoint."""
        in_layers = sum(
            matrix.num_values
            for layer in range(self.num_layers)
            for matrix in self.layer_matrices(layer)
            if not matrix.is_derived
        )
        table = self.embedding.num_values
        beside = [self.final_norm, *self.vision_matrices]
        return in_layers + sum(matrix.num_values for matrix in beside) + table * (1 if self.has_tied_embeddings else 2)

    @property
    def embedding(self) -> Matrix:
        """The input embeddings. TensorRT-LLM copies them to every rank by default."""
        return Matrix("embedding", self.vocab_size * self.hidden_size, Split.COPIED, is_quantized=False)

    @property
    def head(self) -> Matrix:
        """The matrix before the logits. An engine has its own, also where the checkpoint ties it to the embeddings."""
        return Matrix("head", self.vocab_size * self.hidden_size, Split.BY_RANK, is_quantized=False)

    @property
    def final_norm(self) -> Matrix:
        """The norm behind the last layer."""
        return Matrix("final norm", self.hidden_size, Split.COPIED, is_quantized=False)

    @property
    def vision_matrices(self) -> tuple[Matrix, ...]:
        """The vision transformer, if the model reads images."""
        if self.vision is None:
            return ()
        num_values = self.vision.num_parameters(self.hidden_size)
        return (Matrix("vision transformer", num_values, Split.COPIED, is_quantized=False),)

    def layer_matrices(self, layer: int) -> Iterator[Matrix]:
        """Yield the weights of one layer, counted from 0."""
        yield Matrix("norms", self.num_norms_per_layer * self.hidden_size, Split.COPIED, is_quantized=False)
        if self.latent_attention is not None:
            yield from self._latent_attention_matrices(self.latent_attention)
        else:
            yield from self._attention_matrices()
        experts = self.mixture_of_experts
        if experts is None or layer < experts.num_dense_layers:
            yield Matrix("mlp", 3 * self.hidden_size * self.intermediate_size, Split.BY_RANK)
        else:
            expert = 3 * self.hidden_size * experts.intermediate_size
            yield Matrix("router", self.hidden_size * experts.num_routed_experts, Split.COPIED, is_quantized=False)
            yield Matrix("routed experts", experts.num_routed_experts * expert, Split.BY_RANK)
            yield Matrix("shared experts", experts.num_shared_experts * expert, Split.BY_RANK)

    def kv_bytes_per_token(self, bytes_per_value: int, tp_size: int = 1) -> int:
        """Return the size of one token in the cache of one rank that has all layers."""
        if self.latent_attention is not None:
            values = self.latent_attention.cached_size
        else:
            values = 2 * kv_heads_per_rank(self.num_kv_heads, tp_size) * self.head_size
        return self.num_layers * values * bytes_per_value

    def _attention_matrices(self) -> Iterator[Matrix]:
        q_size, kv_size = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        yield Matrix("q", self.hidden_size * q_size, Split.BY_RANK)
        yield Matrix("k and v", 2 * self.hidden_size * kv_size, Split.BY_KV_HEAD)
        yield Matrix("attention output", q_size * self.hidden_size, Split.BY_RANK)
        if self.has_qkv_bias:
            yield Matrix("q bias", q_size, Split.BY_RANK, is_quantized=False)
            yield Matrix("k and v bias", 2 * kv_size, Split.BY_KV_HEAD, is_quantized=False)

    def _latent_attention_matrices(self, latent: LatentAttention) -> Iterator[Matrix]:
        query_size = latent.qk_nope_head_size + latent.qk_rope_head_size
        compressed = latent.q_lora_rank + latent.cached_size
        yield Matrix("q and kv down", self.hidden_size * compressed, Split.COPIED)
        yield Matrix("latent norms", latent.q_lora_rank + latent.kv_lora_rank, Split.COPIED, is_quantized=False)
        yield Matrix("q up", latent.q_lora_rank * self.num_heads * query_size, Split.BY_RANK)
        kv_up_size = self.num_heads * (latent.qk_nope_head_size + latent.v_head_size)
        yield Matrix("kv up", latent.kv_lora_rank * kv_up_size, Split.BY_RANK)
        yield Matrix("attention output", self.num_heads * latent.v_head_size * self.hidden_size, Split.BY_RANK)
        # For decoding, the converter multiplies the up-projections of queries and keys into one matrix, and keeps both.
        absorbed = latent.q_lora_rank * self.num_heads * latent.cached_size
        yield Matrix("absorbed q up", absorbed, Split.BY_RANK, is_derived=True)


def kv_heads_per_rank(num_kv_heads: int, tp_size: int) -> int:
    """Return the key-value heads of one rank. With more ranks than heads, ranks share heads."""
    return -(-num_kv_heads // tp_size)
