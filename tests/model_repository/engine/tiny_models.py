"""Tiny models of random weights, with every kind of KV cache that llama.cpp has, and encoders without one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

from model_repository.engine.llama_cpp.library import llama, load_backends
from tests.build_engines.tiny_checkpoint import CONFIG
from tests.gguf_writing import write_and_close

type Keys = Mapping[str, int | float | bool | list[int] | list[bool]]

_COMMON: Keys = {
    "vocab_size": CONFIG["vocab_size"],
    "context_length": CONFIG["max_position_embeddings"],
    "embedding_length": CONFIG["hidden_size"],
    "block_count": 2,
    "feed_forward_length": 96,
    "attention.head_count": 3,
    "attention.head_count_kv": 1,
    "attention.key_length": 16,
    "attention.value_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.layer_norm_epsilon": 1e-5,
    "rope.dimension_count": 16,
}
_EXPERTS: Keys = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 32,
    "expert_shared_feed_forward_length": 32,
}
_LATENT: Keys = {
    "attention.q_lora_rank": 24,
    "attention.kv_lora_rank": 32,
    "attention.key_length": 40,
    "attention.value_length": 32,
    "attention.key_length_mla": 24,
    "attention.value_length_mla": 16,
    "rope.dimension_count": 8,
    "leading_dense_block_count": 1,
    "expert_shared_count": 1,
    "expert_weights_scale": 1.0,
    "expert_gating_func": 2,
}
_SLIDING: Keys = {"attention.sliding_window": 32}
_STATES: Keys = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 2 * CONFIG["hidden_size"],
    "ssm.state_size": 16,
    "ssm.time_step_rank": 6,
    "ssm.group_count": 2,
}
_LINEAR: Keys = {**_STATES, "full_attention_interval": 2, "rope.dimension_sections": [4, 4, 0, 0]}
_MAMBA_2: Keys = {
    **_STATES,
    "block_count": 3,
    "feed_forward_length": [0, 0, 96],
    "attention.head_count_kv": [1, 0, 1],
}

# llama.cpp's names of architectures, and their keys beside the common ones.
FULL_ATTENTION: dict[str, Keys] = {
    "qwen3moe": _EXPERTS,
    "deepseek2": {**_LATENT, **_EXPERTS},
    "deepseek32": {
        **_LATENT,
        **_EXPERTS,
        "attention.indexer.head_count": 4,
        "attention.indexer.key_length": 128,
        "attention.indexer.top_k": 16,
    },
}
SLIDING_WINDOW: dict[str, Keys] = {
    "gemma3": {**_SLIDING, "block_count": 6},
    "gemma4": {
        **_SLIDING,
        "attention.sliding_window_pattern": [True, False],
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 16,
        "attention.shared_kv_layers": 0,
        "embedding_length_per_layer_input": 8,
        "rope.freq_base_swa": 1e4,
    },
    "gpt-oss": {**_SLIDING, **_EXPERTS},
}
RECURRENT: dict[str, Keys] = {
    "mamba": {**_STATES, "feed_forward_length": 0, "attention.head_count": 0, "attention.head_count_kv": 0},
    "qwen35": _LINEAR,
    "qwen3next": {**_LINEAR, **_EXPERTS},
    "nemotron_h": _MAMBA_2,
    "nemotron_h_moe": {**_MAMBA_2, **_EXPERTS},
    "granitehybrid": {
        **_STATES,
        "attention.head_count_kv": [1, 0],
        **dict.fromkeys(("attention.scale", "embedding_scale", "residual_scale", "logit_scale"), 1.0),
    },
    "lfm2": {"attention.head_count_kv": [1, 0], "shortconv.l_cache": 3},
    "kimi-linear": {
        **{key: value for key, value in _LATENT.items() if key != "attention.q_lora_rank"},
        **_EXPERTS,
        "attention.head_count_kv": [0, 1],
        "ssm.conv_kernel": 4,
        "kda.head_dim": 16,
    },
}
_MEAN: Keys = {"pooling_type": gguf.PoolingType.MEAN, "attention.causal": False, "attention.head_count_kv": 3}
ENCODERS: dict[str, Keys] = {
    "bert": _MEAN,
    "nomic-bert": {**_MEAN, "rope.freq_base": 1e3},
    "nomic-bert-moe": {
        **_MEAN,
        "rope.freq_base": 1e4,
        "moe_every_n_layers": 2,
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_gating_func": 1,
    },
    "jina-bert-v2": _MEAN,
    "jina-bert-v3": {**_MEAN, "rope.freq_base": 2e4},
    "neo-bert": _MEAN,
    "eurobert": {**_MEAN, "rope.freq_base": 25e4},
    "modern-bert": {**_MEAN, **_SLIDING, "rope.freq_base": 1e4, "rope.freq_base_swa": 1e4},
    "gemma-embedding": {
        **_MEAN,
        **_SLIDING,
        "block_count": 6,  # one layer without a window
        **dict.fromkeys(("dense_2_feat_in", "dense_3_feat_out"), CONFIG["hidden_size"]),
        **dict.fromkeys(("dense_2_feat_out", "dense_3_feat_in"), 64),
    },
}
_ARCHITECTURES = FULL_ATTENTION | SLIDING_WINDOW | RECURRENT | ENCODERS


def write_model(
    path: Path, architecture: str, tokenizer_of: Path | None = None, *, nan_rows: Mapping[str, int] | None = None
) -> Path:
    """Write a GGUF file, with the tokenizer of another one or without any, and return its path.

    llama.cpp itself names the tensors and their shapes.

    Args:
        nan_rows: tensor to a row of it that is NaN.
    """
    tokenizer = {} if tokenizer_of is None else gguf.GGUFReader(tokenizer_of).fields
    write_and_close(_writer(path, architecture, tokenizer))
    shapes: dict[str, tuple[int, ...]] = {}
    load_backends()
    metadata = llama.GGUFContext.from_file(str(path))
    llama.LlamaModel.from_user(metadata, lambda tensor: shapes.update({tensor.name: tensor.shape})).close()
    rng, writer = np.random.default_rng(0), _writer(path, architecture, tokenizer)
    for name, shape in shapes.items():
        if not name.endswith(("scale", "rope_factors_long.weight", "rope_factors_short.weight")):
            values = _values(rng, name, shape[::-1]).astype(np.float32)
            if nan_rows and name in nan_rows:
                values[nan_rows[name]] = np.nan
            writer.add_tensor(name, values)
    write_and_close(writer)
    return path


def _writer(path: Path, architecture: str, tokenizer: Mapping[str, gguf.ReaderField]) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, field in tokenizer.items():
        if key.startswith("tokenizer."):
            writer.add_key_value(key, field.contents(), field.types[0], sub_type=field.types[-1])
    if not tokenizer:
        writer.add_tokenizer_model("no_vocab")
    if architecture in ENCODERS:
        writer.add_token_type_count(2)
    for key, value in {**_COMMON, **_ARCHITECTURES[architecture]}.items():
        if isinstance(value, bool):
            writer.add_bool(f"{architecture}.{key}", value)
        elif isinstance(value, list):
            writer.add_array(f"{architecture}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{architecture}.{key}", value)
        else:
            writer.add_uint32(f"{architecture}.{key}", value)
    return writer


def _values(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = rng.normal(size=shape)
    if "ssm_a" in name:  # a state decays
        return -0.3 * np.abs(values)
    if "norm" in name or "rope_freqs" in name:
        return 1 + 0.1 * np.abs(values)
    return values / np.sqrt(shape[-1]) if len(shape) > 1 else values
