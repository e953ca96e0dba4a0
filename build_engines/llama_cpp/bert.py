"""The sizes and tensors of a BERT checkpoint, for llama.cpp."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gguf

from build_engines.checkpoint import positive_number, require, whole_number
from build_engines.errors import UnsupportedCheckpoint
from build_engines.llama_cpp.weights import StoredTensor

WORDS, TYPES = (f"embeddings.{each}_embeddings.weight" for each in ("word", "token_type"))
_NEUTRAL = {"hidden_act": "gelu", "position_embedding_type": "absolute"}
_UNUSED = "cls."  # beside the encoder: the heads of the pre-training
_POOLER, _CLASSIFIER = "classifier.dense", "classifier.out_proj"  # RoBERTa's names of the two layers of a head
_OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}
_HEAD = {"pooler.dense.": f"{_POOLER}.", "classifier.": f"{_CLASSIFIER}."}


@dataclass(frozen=True, slots=True, kw_only=True)
class BertConfig:
    """The sizes of an encoder."""

    arch: ClassVar[gguf.MODEL_ARCH] = gguf.MODEL_ARCH.BERT
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    vocab_size: int
    context_window: int  # rows of the position embedding
    num_types: int
    layer_norm_eps: float
    num_labels: int  # scores of a classification head; 0: the model embeds

    @classmethod
    def of(cls, config: dict[str, Any], num_labels: int = 0) -> BertConfig:
        """Read config.json.

        Raises:
            BuildError: a field is missing.
            UnsupportedCheckpoint: a field has an unsupported value; names the field.
        """
        for field, neutral in _NEUTRAL.items():
            if config.get(field, neutral) != neutral:
                raise UnsupportedCheckpoint(f"config.json: {field}={config[field]!r}: expected {neutral!r}")
        names = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads")
        require(config, *names, "vocab_size", "max_position_embeddings")
        layers, hidden, inner, heads = (whole_number(f"config.json: {name}", config[name]) for name in names)
        if hidden % heads:
            raise UnsupportedCheckpoint(f"config.json: num_attention_heads={heads}: expected a divisor of {hidden}")
        return cls(
            num_layers=layers,
            hidden_size=hidden,
            intermediate_size=inner,
            num_heads=heads,
            vocab_size=config["vocab_size"],
            context_window=config["max_position_embeddings"],
            num_types=whole_number("config.json: type_vocab_size", config.get("type_vocab_size", 2)),
            layer_norm_eps=positive_number("config.json: layer_norm_eps", config.get("layer_norm_eps", 1e-12)),
            num_labels=num_labels,
        )

    @property
    def has_token_types(self) -> bool:
        """Whether the file has all tokens twice, see TypedRows."""
        return bool(self.num_labels) and self.num_types > 1

    @property
    def num_kv_heads(self) -> int:
        return self.num_heads

    def write(self, writer: gguf.GGUFWriter) -> None:
        """Write the metadata for llama.cpp's loader."""
        writer.add_block_count(self.num_layers)
        writer.add_context_length(self.context_window)
        writer.add_embedding_length(self.hidden_size)
        writer.add_feed_forward_length(self.intermediate_size)
        writer.add_head_count(self.num_heads)
        writer.add_layer_norm_eps(self.layer_norm_eps)
        writer.add_vocab_size(self.vocab_size * 2 if self.has_token_types else self.vocab_size)
        writer.add_token_type_count(self.num_types)
        writer.add_causal_attention(False)

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and the shape of each tensor."""
        hidden, inner = self.hidden_size, self.intermediate_size
        yield WORDS, (self.vocab_size, hidden)
        yield "embeddings.position_embeddings.weight", (self.context_window, hidden)
        yield TYPES, (self.num_types, hidden)
        yield from _with_bias("embeddings.LayerNorm", hidden)
        for layer in range(self.num_layers):
            block = f"encoder.layer.{layer}"
            for name in ("query", "key", "value"):
                yield from _with_bias(f"{block}.attention.self.{name}", hidden, hidden)
            yield from _with_bias(f"{block}.attention.output.dense", hidden, hidden)
            yield from _with_bias(f"{block}.attention.output.LayerNorm", hidden)
            yield from _with_bias(f"{block}.intermediate.dense", inner, hidden)
            yield from _with_bias(f"{block}.output.dense", hidden, inner)
            yield from _with_bias(f"{block}.output.LayerNorm", hidden)
        if self.num_labels:
            yield from _with_bias(_POOLER, hidden, hidden)
            yield from _with_bias(_CLASSIFIER, self.num_labels, hidden)


def _with_bias(module: str, *shape: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{module}.weight", shape
    yield f"{module}.bias", shape[:1]


def bert_tensors(stored: Mapping[str, StoredTensor], *, has_head: bool) -> dict[str, StoredTensor]:
    """Return the tensors of the encoder, by their names in transformers' BertModel, and those of a classification head.

    Embeddings do not pass the pooler, which is the first layer of the head.
    """
    tensors = {}
    for name, tensor in stored.items():
        name = name.removeprefix("bert.")
        for old, new in _OLD_NAMES.items():
            name = name.removesuffix(old) + new if name.endswith(old) else name
        head = next((prefix for prefix in _HEAD if name.startswith(prefix)), None)
        if head is not None and has_head:
            tensors[_HEAD[head] + name.removeprefix(head)] = tensor
        elif head is None and not name.startswith(_UNUSED):
            tensors[name] = tensor
    return tensors
