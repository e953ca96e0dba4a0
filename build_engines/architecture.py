"""The shape of a decoder-only model: its configuration numbers, its matrices, and what its layers keep of a text."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, StrEnum, auto
from typing import Annotated, NamedTuple

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

CHECKED = ConfigDict(extra="forbid")  # unknown keys of a file are errors
Count = Annotated[int, Field(strict=True, gt=0)]
Size = Annotated[int, Field(strict=True, ge=0)]
Flag = Annotated[bool, Field(strict=True)]


class LayerKind(StrEnum):
    """What a layer keeps of a sequence, by its letter in `layer_pattern`."""

    FULL = "F"  # keys and values of all tokens
    SLIDING = "S"  # keys and values of the last `sliding_window` tokens
    RECURRENT = "R"  # a state of fixed size
    NOTHING = "-"  # a feed-forward network alone; other layers of such a model have none


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
    is_expert: bool = False  # MXFP4; otherwise as is_quantized says


@dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class Indexer:
    """The numbers of the small attention that chooses the tokens of sparse latent attention. It caches its keys."""

    num_heads: Count
    head_size: Count


@dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class LatentAttention:
    """The numbers of multi-head latent attention, which caches one compressed vector per token and layer."""

    kv_lora_rank: Count
    q_lora_rank: Count
    qk_nope_head_size: Count
    qk_rope_head_size: Count
    v_head_size: Count
    indexer: Indexer | None = None
    has_absorbed_queries: Flag = True  # the conversion multiplies the up-projections of queries and keys

    @property
    def cached_sizes(self) -> tuple[int, ...]:
        """Values in the cache per token and layer, on every rank: a latent vector is not split by heads."""
        return (self.kv_lora_rank, self.qk_rope_head_size, *(() if self.indexer is None else (self.indexer.head_size,)))


@dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class Recurrence:
    """The numbers of recurrent layers: Mamba 2, gated delta nets, or short convolutions, which have no states."""

    num_heads: Count  # of values
    head_size: Count  # a value's
    state_size: Size  # a key's
    num_groups: Size  # heads of keys
    conv_width: Count
    gates_per_head: Count

    @property
    def num_state_values(self) -> int:
        """Values that one layer keeps: the states, and the last inputs of the convolution."""
        return self.num_heads * self.head_size * self.state_size + (self.conv_width - 1) * self._num_channels

    def num_parameters(self, hidden_size: int) -> int:
        """Return the weights of one layer, without its norms and its vectors of one value for each head."""
        inner_size = self.num_heads * self.head_size
        input_size = self._num_channels + inner_size + self.gates_per_head * self.num_heads
        return hidden_size * (input_size + inner_size) + self.conv_width * self._num_channels

    @property
    def _num_channels(self) -> int:
        return self.num_heads * self.head_size + 2 * self.num_groups * self.state_size


@dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class KvHeads:
    """The heads of keys and values of a layer."""

    num_kv_heads: Count
    head_size: Count


@dataclass(frozen=True, slots=True, kw_only=True, config=CHECKED)
class MixtureOfExperts:
    """The numbers of layers in which a router sends each token to a few experts."""

    num_routed_experts: Count
    num_shared_experts: Size
    num_experts_per_token: Count
    intermediate_size: Count  # one expert's
    hidden_size: Count | None = None  # a routed expert's input and output; None: the model's
    num_dense_layers: Size = 0  # the first layers, which have no experts
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
    """The configuration numbers of a model, as its config.json has them.

    Small vectors are counted where the engine backend builds the model; elsewhere biases, sinks and norms of heads are
    left out, less than a thousandth of the weights.
    """

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
    num_mlp_matrices: Count = 3  # gate, up and down; 2: up and down
    has_output_gate: Flag = False  # the attention's, as large as its queries
    layer_pattern: Annotated[str, Field(pattern=f"^[{''.join(LayerKind)}]+$")] = LayerKind.FULL.value  # repeated
    sliding_window: Count | None = None  # tokens
    full_attention: KvHeads | None = None  # of layers without a window; None: as in the others
    num_shared_kv_layers: Size = 0  # the last layers, which use keys and values of earlier ones
    has_double_wide_mlp: Flag = False  # the last layers' with shared keys and values
    per_layer_embedding_size: Size = 0
    recurrence: Recurrence | None = None
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
        for kind, name in ((LayerKind.SLIDING, "sliding_window"), (LayerKind.RECURRENT, "recurrence")):
            if (kind in self.layer_pattern) != (getattr(self, name) is not None):
                raise ValueError(f"layer_pattern: {self.layer_pattern}: {kind} goes with {name}")

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
        beside = [self.final_norm, *self.per_layer_embeddings, *self.vision_matrices]
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
    def per_layer_embeddings(self) -> tuple[Matrix, ...]:
        """The input embeddings of each layer, and their projection from the hidden state, if the model has them."""
        if not self.per_layer_embedding_size:
            return ()
        num_values = (self.vocab_size + self.hidden_size) * self.num_layers * self.per_layer_embedding_size
        return (Matrix("per-layer embeddings", num_values, Split.COPIED, is_quantized=False),)

    @property
    def vision_matrices(self) -> tuple[Matrix, ...]:
        """The vision transformer, if the model reads images."""
        if self.vision is None:
            return ()
        num_values = self.vision.num_parameters(self.hidden_size)
        return (Matrix("vision transformer", num_values, Split.COPIED, is_quantized=False),)

    def layer_kind(self, layer: int) -> LayerKind:
        """Return the kind of a layer, counted from 0."""
        return LayerKind(self.layer_pattern[layer % len(self.layer_pattern)])

    def num_cached_layers(self, kind: LayerKind) -> int:
        """Return the number of layers that keep something of their own."""
        layers = range(self.num_layers - self.num_shared_kv_layers)
        return sum(self.layer_kind(layer) is kind for layer in layers)

    def kv_heads(self, kind: LayerKind) -> KvHeads:
        """Return the heads of keys and values of a layer with attention."""
        if kind is LayerKind.FULL and self.full_attention is not None:
            return self.full_attention
        return KvHeads(num_kv_heads=self.num_kv_heads, head_size=self.head_size)

    def layer_matrices(self, layer: int) -> Iterator[Matrix]:
        """Yield the weights of one layer, counted from 0."""
        kind = self.layer_kind(layer)
        yield Matrix("norms", self.num_norms_per_layer * self.hidden_size, Split.COPIED, is_quantized=False)
        if kind is LayerKind.RECURRENT and self.recurrence is not None:
            yield Matrix("recurrence", self.recurrence.num_parameters(self.hidden_size), Split.BY_RANK)
        elif kind is not LayerKind.NOTHING and self.latent_attention is not None:
            yield from self._latent_attention_matrices(self.latent_attention)
        elif kind is not LayerKind.NOTHING:
            yield from self._attention_matrices(kind, has_kv=layer < self.num_layers - self.num_shared_kv_layers)
        if (kind is LayerKind.NOTHING) == (LayerKind.NOTHING in self.layer_pattern):
            yield from self._mlp_matrices(layer)

    def _mlp_matrices(self, layer: int) -> Iterator[Matrix]:
        experts = self.mixture_of_experts
        matrix_size = self.num_mlp_matrices * self.hidden_size
        if experts is None or layer < experts.num_dense_layers:
            is_double = self.has_double_wide_mlp and layer >= self.num_layers - self.num_shared_kv_layers
            yield Matrix("mlp", matrix_size * self.intermediate_size * (2 if is_double else 1), Split.BY_RANK)
        else:
            expert = matrix_size * experts.intermediate_size
            routed = self.num_mlp_matrices * (experts.hidden_size or self.hidden_size) * experts.intermediate_size
            yield Matrix("router", self.hidden_size * experts.num_routed_experts, Split.COPIED, is_quantized=False)
            yield Matrix("routed experts", experts.num_routed_experts * routed, Split.BY_RANK, is_expert=True)
            yield Matrix("shared experts", experts.num_shared_experts * expert, Split.BY_RANK)
            if experts.hidden_size is not None:
                yield Matrix("expert projections", 2 * self.hidden_size * experts.hidden_size, Split.COPIED)
        if self.per_layer_embedding_size:
            yield Matrix("per-layer gates", 2 * self.hidden_size * self.per_layer_embedding_size, Split.COPIED)

    def _attention_matrices(self, kind: LayerKind, *, has_kv: bool) -> Iterator[Matrix]:
        heads = self.kv_heads(kind)
        q_size, kv_size = self.num_heads * heads.head_size, heads.num_kv_heads * heads.head_size
        yield Matrix("q", self.hidden_size * q_size * (2 if self.has_output_gate else 1), Split.BY_RANK)
        if has_kv:
            yield Matrix("k and v", 2 * self.hidden_size * kv_size, Split.BY_KV_HEAD)
        yield Matrix("attention output", q_size * self.hidden_size, Split.BY_RANK)
        if self.has_qkv_bias:
            yield Matrix("q bias", q_size, Split.BY_RANK, is_quantized=False)
            yield Matrix("k and v bias", 2 * kv_size, Split.BY_KV_HEAD, is_quantized=False)

    def _latent_attention_matrices(self, latent: LatentAttention) -> Iterator[Matrix]:
        query_size = latent.qk_nope_head_size + latent.qk_rope_head_size
        cached_size = latent.kv_lora_rank + latent.qk_rope_head_size
        compressed = latent.q_lora_rank + cached_size
        yield Matrix("q and kv down", self.hidden_size * compressed, Split.COPIED)
        yield Matrix("latent norms", latent.q_lora_rank + latent.kv_lora_rank, Split.COPIED, is_quantized=False)
        yield Matrix("q up", latent.q_lora_rank * self.num_heads * query_size, Split.BY_RANK)
        kv_up_size = self.num_heads * (latent.qk_nope_head_size + latent.v_head_size)
        yield Matrix("kv up", latent.kv_lora_rank * kv_up_size, Split.BY_RANK)
        yield Matrix("attention output", self.num_heads * latent.v_head_size * self.hidden_size, Split.BY_RANK)
        if latent.indexer is not None:
            num_heads, head_size = latent.indexer.num_heads, latent.indexer.head_size
            indexer = latent.q_lora_rank * num_heads * head_size + self.hidden_size * (num_heads + head_size)
            yield Matrix("indexer", indexer, Split.COPIED)
        if latent.has_absorbed_queries:  # for decoding; the converter keeps both factors
            absorbed = latent.q_lora_rank * self.num_heads * cached_size
            yield Matrix("absorbed q up", absorbed, Split.BY_RANK, is_derived=True)


def kv_heads_per_rank(num_kv_heads: int, tp_size: int) -> int:
    """Return the key-value heads of one rank. With more ranks than heads, ranks share heads."""
    return -(-num_kv_heads // tp_size)
