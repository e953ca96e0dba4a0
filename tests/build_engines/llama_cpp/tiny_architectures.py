"""Tiny models whose layers keep something else of a text than keys and values of all tokens. Their weights are zero."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from build_engines.architecture import Architecture, LatentAttention, MixtureOfExperts, Recurrence
from tests.gguf_writing import write_and_close

_SIZE = 64  # of the hidden state, the vocabulary and the MLP
_NUM_HEADS, _NUM_KV_HEADS, _HEAD_SIZE = 4, 2, 16
_LATENT = LatentAttention(kv_lora_rank=32, q_lora_rank=24, qk_nope_head_size=16, qk_rope_head_size=8, v_head_size=16)
_DELTA_NET = Recurrence(num_heads=4, head_size=16, state_size=16, num_groups=2, conv_width=4, gates_per_head=2)
_MAMBA = Recurrence(num_heads=4, head_size=16, state_size=16, num_groups=2, conv_width=4, gates_per_head=1)
_SHORT_CONV = Recurrence(num_heads=_SIZE, head_size=1, state_size=0, num_groups=0, conv_width=3, gates_per_head=1)
_EXPERTS = MixtureOfExperts(
    num_routed_experts=4, num_shared_experts=0, num_experts_per_token=2, intermediate_size=_SIZE
)


def _architecture(num_layers: int, **others: Any) -> Architecture:
    return Architecture(
        class_name="Tiny",
        num_layers=num_layers,
        hidden_size=_SIZE,
        num_heads=_NUM_HEADS,
        num_kv_heads=_NUM_KV_HEADS,
        head_size=_HEAD_SIZE,
        intermediate_size=_SIZE,
        vocab_size=_SIZE,
        **others,
    )


ARCHITECTURES = {
    "gpt-oss": _architecture(4, layer_pattern="SF", sliding_window=128, mixture_of_experts=_EXPERTS),
    "qwen35": _architecture(8, layer_pattern="RRRF", recurrence=_DELTA_NET, has_output_gate=True),
    "nemotron_h": _architecture(5, layer_pattern="R-F-R", recurrence=_MAMBA, num_mlp_matrices=2),
    "lfm2": _architecture(4, layer_pattern="RF", recurrence=_SHORT_CONV),
    "deepseek2": _architecture(3, latent_attention=_LATENT),
}

type Shapes = dict[str, tuple[int, ...]]

_NORM: Shapes = {"attn_norm.weight": (_SIZE,)}
_MLP: Shapes = {"ffn_up.weight": (_SIZE, _SIZE), "ffn_down.weight": (_SIZE, _SIZE)}
_GATED = _MLP | {"ffn_gate.weight": (_SIZE, _SIZE)}
_EXPERT_NETWORKS: Shapes = {
    "ffn_gate_inp": (4, _SIZE),
    **{f"ffn_{name}_exps": (4, _SIZE, _SIZE) for name in ("gate", "up", "down")},
}


def _attention(gate: int = 1) -> Shapes:
    q_size, kv_size = _NUM_HEADS * _HEAD_SIZE, _NUM_KV_HEADS * _HEAD_SIZE
    return _NORM | {
        "attn_q.weight": (q_size * gate, _SIZE),
        "attn_k.weight": (kv_size, _SIZE),
        "attn_v.weight": (kv_size, _SIZE),
        "attn_output.weight": (_SIZE, q_size),
    }


def _head_norms() -> Shapes:
    return {"attn_q_norm.weight": (_HEAD_SIZE,), "attn_k_norm.weight": (_HEAD_SIZE,)}


def _layers(name: str) -> list[Shapes]:
    """Return the shapes of each layer, rows first."""
    inner, channels = 64, 128  # of the recurrences
    match name:
        case "gpt-oss":
            attention = {key: shape for key, shape in _attention().items() if key != "attn_norm.weight"}
            biases = {key.replace("weight", "bias"): shape[:1] for key, shape in attention.items()}
            experts = {f"{key}.weight": shape for key, shape in _EXPERT_NETWORKS.items()}
            experts |= {f"{key}.bias": shape[:-1] for key, shape in _EXPERT_NETWORKS.items()}
            norms = _NORM | {"post_attention_norm.weight": (_SIZE,), "attn_sinks.weight": (_NUM_HEADS,)}
            return [attention | biases | experts | norms] * 4
        case "qwen35":
            shared = _GATED | {"post_attention_norm.weight": (_SIZE,)}
            recurrent = _NORM | {
                "attn_qkv.weight": (channels, _SIZE),
                "attn_gate.weight": (inner, _SIZE),
                "ssm_conv1d.weight": (channels, 4),
                "ssm_dt.bias": (4,),
                "ssm_a": (4,),
                "ssm_beta.weight": (4, _SIZE),
                "ssm_alpha.weight": (4, _SIZE),
                "ssm_norm.weight": (16,),
                "ssm_out.weight": (_SIZE, inner),
            }
            return [*[recurrent | shared] * 3, _attention(gate=2) | _head_norms() | shared] * 2
        case "nemotron_h":
            mamba = _NORM | {
                "ssm_in.weight": (inner + channels + 4, _SIZE),
                "ssm_conv1d.weight": (channels, 4),
                "ssm_conv1d.bias": (channels,),
                "ssm_dt.bias": (4,),
                "ssm_a": (4, 1),
                "ssm_d": (4, 1),
                "ssm_norm.weight": (2, inner // 2),
                "ssm_out.weight": (_SIZE, inner),
            }
            return [mamba, _NORM | _MLP, _attention(), _NORM | _MLP, mamba]
        case "lfm2":
            norms = _NORM | {"ffn_norm.weight": (_SIZE,)}
            convolution = {
                "shortconv.conv.weight": (_SIZE, 3),
                "shortconv.in_proj.weight": (3 * _SIZE, _SIZE),
                "shortconv.out_proj.weight": (_SIZE, _SIZE),
            }
            return [convolution | norms | _GATED, _attention() | _head_norms() | norms | _GATED] * 2
        case _:  # deepseek2
            latent = {
                "attn_q_a.weight": (24, _SIZE),
                "attn_q_a_norm.weight": (24,),
                "attn_q_b.weight": (4 * 24, 24),
                "attn_kv_a_mqa.weight": (40, _SIZE),
                "attn_kv_a_norm.weight": (32,),
                "attn_k_b.weight": (4, 32, 16),
                "attn_v_b.weight": (4, 16, 32),
                "attn_output.weight": (_SIZE, 64),
            }
            return [_NORM | latent | _GATED | {"ffn_norm.weight": (_SIZE,)}] * 3


_HEADS = {"attention.head_count": 4, "attention.key_length": 16, "attention.value_length": 16}
_EXPERT_COUNTS = {"expert_count": 4, "expert_used_count": 2}
_STATES = {"ssm.conv_kernel": 4, "ssm.inner_size": 64, "ssm.state_size": 16, "ssm.time_step_rank": 4}
_FIELDS: dict[str, dict[str, Any]] = {
    "gpt-oss": _HEADS | {"attention.sliding_window": 128, "expert_feed_forward_length": _SIZE} | _EXPERT_COUNTS,
    "qwen35": _HEADS | _STATES | {"ssm.group_count": 2, "rope.dimension_sections": [4, 2, 2, 0]},
    "nemotron_h": _HEADS | _STATES | {"ssm.group_count": 2, "feed_forward_length": [0, _SIZE, 0, _SIZE, 0]},
    "lfm2": _HEADS | {"shortconv.l_cache": 3},
    "deepseek2": {
        "attention.head_count": 4,
        "attention.key_length": 40,
        "attention.value_length": 32,
        "attention.key_length_mla": 24,
        "attention.value_length_mla": 16,
        "attention.q_lora_rank": 24,
        "attention.kv_lora_rank": 32,
        "leading_dense_block_count": 3,
        **_EXPERT_COUNTS,
        "expert_feed_forward_length": 16,
        "expert_shared_count": 1,
        "expert_gating_func": 2,
    },
}
_NUM_KV_HEADS_OF_LAYERS = {"nemotron_h": [0, 0, 2, 0, 0], "lfm2": [0, 2, 0, 2], "deepseek2": 1}


def write_tiny(path: Path, name: str) -> Path:
    """Write a GGUF file of an architecture, without a tokenizer, and return its path."""
    layers, writer = _layers(name), gguf.GGUFWriter(str(path), name)
    fields: dict[str, Any] = {
        "context_length": 1024,
        "embedding_length": _SIZE,
        "feed_forward_length": _SIZE,
        "block_count": len(layers),
        "vocab_size": _SIZE,
        "attention.head_count_kv": _NUM_KV_HEADS_OF_LAYERS.get(name, _NUM_KV_HEADS),
        "rope.dimension_count": 8 if name == "deepseek2" else 16,
    }
    for key, value in (fields | _FIELDS[name]).items():
        add = writer.add_array if isinstance(value, list) else writer.add_uint32
        add(f"{name}.{key}", value)
    for key in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
        writer.add_float32(f"{name}.{key}", 1e-5)
    writer.add_tokenizer_model("no_vocab")
    norm = "token_embd_norm" if name == "lfm2" else "output_norm"
    shapes: Shapes = {"token_embd.weight": (_SIZE, _SIZE), f"{norm}.weight": (_SIZE,), "output.weight": (_SIZE, _SIZE)}
    for number, layer in enumerate(layers):
        shapes |= {f"blk.{number}.{key}": shape for key, shape in layer.items()}
    for key, shape in shapes.items():
        writer.add_tensor(key, np.zeros(shape, dtype=np.float32))
    write_and_close(writer)
    return path
