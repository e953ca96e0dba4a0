"""A Llama checkpoint of random weights, small enough to be made in a test, and its byte-level tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import pre_tokenizers

type Weights = dict[str, npt.NDArray[np.float16]]

ADDED_TOKENS = ("<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 48,
    "intermediate_size": 80,
    "max_position_embeddings": 1024,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 288,
}


def tokenizer_description(
    added_tokens: Sequence[str] = ADDED_TOKENS, *, merges: Sequence[tuple[str, str]] = (), **model: Any
) -> dict[str, Any]:
    """Return a tokenizer.json: all bytes, the merges, the added tokens; `model` replaces parts of its model."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["".join(merge) for merge in merges]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": len(tokens) + index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for index, token in enumerate(added_tokens)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "unk_token": None,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": list(merges),
        }
        | model,
    }


def random_weights(config: Mapping[str, Any] = CONFIG, seed: int = 0) -> Weights:
    """Return the tensors of a checkpoint by their names in Hugging Face's layout."""
    random = np.random.default_rng(seed)
    hidden, intermediate, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, key_value = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float16]:
        return random.normal(0, columns**-0.5, (rows, columns)).astype(np.float16)

    def vector() -> npt.NDArray[np.float16]:
        return random.normal(1, 0.2, hidden).astype(np.float16)

    weights = {
        "model.embed_tokens.weight": matrix(config["vocab_size"], hidden),
        "model.norm.weight": vector(),
        "lm_head.weight": 3 * matrix(config["vocab_size"], hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        shapes = {
            "self_attn.q_proj": (query, hidden),
            "self_attn.k_proj": (key_value, hidden),
            "self_attn.v_proj": (key_value, hidden),
            "self_attn.o_proj": (hidden, query),
            "mlp.gate_proj": (intermediate, hidden),
            "mlp.up_proj": (intermediate, hidden),
            "mlp.down_proj": (hidden, intermediate),
        }
        # Larger than a trained model's, so that attention is far from uniform and a wrong rotation shows.
        weights |= {f"model.layers.{layer}.{name}.weight": 2 * matrix(*shape) for name, shape in shapes.items()}
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = vector()
    return weights


def write_checkpoint(folder: Path, *, weights: Weights | None = None, **config: Any) -> Path:
    """Write a checkpoint folder and return it; a `config` value of None takes the key out."""
    folder.mkdir(parents=True, exist_ok=True)
    merged = {name: value for name, value in (CONFIG | config).items() if value is not None}
    description = tokenizer_description(merges=[("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n")])
    end_of_turn = description["added_tokens"][1]["id"]
    for name, content in (
        ("config.json", merged),
        ("generation_config.json", {"eos_token_id": [end_of_turn]}),
        ("tokenizer.json", description),
        ("tokenizer_config.json", {"chat_template": CHAT_TEMPLATE, "eos_token": "<|im_end|>"}),
    ):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    save_file(random_weights() if weights is None else weights, folder / "model.safetensors")
    return folder
