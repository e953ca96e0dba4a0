"""Reads and checks config.json of the architectures that are converted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gguf

from build_engines.checkpoint import positive_number, require, whole_number
from build_engines.errors import UnsupportedCheckpoint
from build_engines.json_files import class_of
from build_engines.llama_cpp.bert import BertConfig
from build_engines.llama_cpp.rope import Rope
from build_engines.scores import CLASSIFIERS, label_names
from build_engines.sentence_transformers import ENCODERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A class of transformers: its architecture in GGUF, and its differences from the other classes."""

    arch: gguf.MODEL_ARCH
    has_optional_biases: bool = False  # attention_bias and mlp_bias of config.json switch them on
    has_qkv_bias: bool = False
    has_head_norms: bool = False  # of each query and key head
    sliding_window: int | None = None  # tokens, if config.json does not say; None: the class has no such window


ARCHITECTURES = {
    "LlamaForCausalLM": Architecture(arch=gguf.MODEL_ARCH.LLAMA, has_optional_biases=True),
    "MistralForCausalLM": Architecture(arch=gguf.MODEL_ARCH.LLAMA, sliding_window=4096),
    "Qwen2ForCausalLM": Architecture(arch=gguf.MODEL_ARCH.QWEN2, has_qkv_bias=True),
    "Qwen3ForCausalLM": Architecture(arch=gguf.MODEL_ARCH.QWEN3, has_head_norms=True),
}

_MAX_LAYERS = 512  # llama-hparams.h: LLAMA_MAX_LAYERS
# Fields that change the computation in an unsupported way, with their neutral values.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "partial_rotary_factor": (None, 1.0),
    "quantization_config": (None,),
    "use_sliding_window": (None, False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The sizes of a model, and its optional tensors."""

    arch: gguf.MODEL_ARCH
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_window: int  # tokens, no more than a sliding window: GGUF has none for these architectures
    rms_norm_eps: float
    rope: Rope
    has_tied_embeddings: bool
    has_qkv_bias: bool
    has_output_bias: bool  # the attention's output projection has one
    has_mlp_bias: bool
    has_head_norms: bool

    @classmethod
    def of(cls, config: dict[str, Any]) -> ModelConfig:
        """Read config.json.

        Raises:
            BuildError: a field is missing.
            UnsupportedCheckpoint: a field has an unsupported value; names the field.
        """
        name = class_of(config)
        if name not in ARCHITECTURES:
            known = ", ".join((*ARCHITECTURES, *ENCODERS, *CLASSIFIERS))
            raise UnsupportedCheckpoint(f"architecture {name}: expected one of {known}")
        for field, neutral in _NEUTRAL.items():
            if config.get(field, neutral[0]) not in neutral:
                raise UnsupportedCheckpoint(f"config.json: {field}={config[field]!r}: expected {neutral[-1]!r}")
        if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
            rule = "expected full_attention alone"
            raise UnsupportedCheckpoint(f"config.json: layer_types={config['layer_types']}: {rule}")
        require(config, "num_hidden_layers", "rms_norm_eps")
        architecture = ARCHITECTURES[name]
        attention_bias, mlp_bias = (
            architecture.has_optional_biases and bool(config.get(field)) for field in ("attention_bias", "mlp_bias")
        )
        hidden_size, num_heads = _count(config, "hidden_size"), _count(config, "num_attention_heads")
        model = cls(
            arch=architecture.arch,
            num_layers=whole_number("config.json: num_hidden_layers", config["num_hidden_layers"], at_most=_MAX_LAYERS),
            hidden_size=hidden_size,
            intermediate_size=_count(config, "intermediate_size"),
            num_heads=num_heads,
            num_kv_heads=_count(config, "num_key_value_heads", num_heads),
            head_dim=_count(config, "head_dim", hidden_size // num_heads),
            vocab_size=_count(config, "vocab_size"),
            context_window=_context_window(config, architecture),
            rms_norm_eps=positive_number("config.json: rms_norm_eps", config["rms_norm_eps"]),
            rope=Rope.of(config),
            has_tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            has_qkv_bias=architecture.has_qkv_bias or attention_bias,
            has_output_bias=attention_bias,
            has_mlp_bias=mlp_bias,
            has_head_norms=architecture.has_head_norms,
        )
        _check_heads(model)
        if model.arch is not gguf.MODEL_ARCH.LLAMA and model.rope.scaling == "llama3":
            raise UnsupportedCheckpoint(f"config.json: rope_type='llama3': llama.cpp does not have it for {name}")
        return model

    def write(self, writer: gguf.GGUFWriter) -> None:
        """Write the metadata for llama.cpp's loader."""
        writer.add_block_count(self.num_layers)
        writer.add_context_length(self.context_window)
        writer.add_embedding_length(self.hidden_size)
        writer.add_feed_forward_length(self.intermediate_size)
        writer.add_head_count(self.num_heads)
        writer.add_head_count_kv(self.num_kv_heads)
        writer.add_key_length(self.head_dim)
        writer.add_value_length(self.head_dim)
        writer.add_rope_dimension_count(self.head_dim)
        writer.add_layer_norm_rms_eps(self.rms_norm_eps)
        writer.add_vocab_size(self.vocab_size)
        self.rope.write(writer)


def read_model(config: dict[str, Any]) -> ModelConfig | BertConfig:
    """Read config.json of any architecture that is converted.

    Raises:
        BuildError: as `ModelConfig.of`.
    """
    architecture = class_of(config)
    if architecture in CLASSIFIERS:
        return BertConfig.of(config, len(label_names(config)))
    return BertConfig.of(config) if architecture in ENCODERS else ModelConfig.of(config)


def _context_window(config: Mapping[str, Any], architecture: Architecture) -> int:
    window = config.get("sliding_window", architecture.sliding_window)
    if architecture.sliding_window is None or window is None:
        return _count(config, "max_position_embeddings")
    window = whole_number("config.json: sliding_window", window, at_least=2)
    return min(window, _count(config, "max_position_embeddings"))


def _check_heads(model: ModelConfig) -> None:
    if model.num_heads % model.num_kv_heads:
        rule = f"expected a divisor of num_attention_heads={model.num_heads}"
        raise UnsupportedCheckpoint(f"config.json: num_key_value_heads={model.num_kv_heads}: {rule}")
    if model.head_dim % 2:
        raise UnsupportedCheckpoint(f"config.json: head_dim={model.head_dim}: expected an even number")


def _count(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    if value is None:
        value = default
    if value is None:
        require(dict(config), name)
    return whole_number(f"config.json: {name}", value)
