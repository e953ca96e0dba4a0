"""A checkpoint of random weights, small enough to be made in a test, and its tokenizer."""

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


def sentencepiece_description() -> dict[str, Any]:
    """Return a tokenizer.json of Llama 2's kind: spaces as U+2581, bytes for what has no token; 288 tokens."""
    letters = ["\u2581", *"abcdefghijklmnopqrst"]
    merges = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("i", "n"), ("\u2581", "a")]
    special = ["<unk>", "<s>", "</s>"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *map("".join, merges)]
    description = tokenizer_description(special, vocab={token: index for index, token in enumerate(tokens)})
    for index, added in enumerate(description["added_tokens"]):
        added["id"] = index
    start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    space, byte_fallback, fuse = "\u2581", {"type": "ByteFallback"}, {"type": "Fuse"}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": space}
    restore = {"type": "Replace", "pattern": {"String": space}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    model = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "merges": merges}
    return description | {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": space}, replace]},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [start, text],
            "pair": [start, text],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {"type": "Sequence", "decoders": [restore, byte_fallback, fuse, strip]},
        "model": description["model"] | model,
    }


def random_weights(config: Mapping[str, Any] = CONFIG, seed: int = 0) -> Weights:
    """Return the tensors of a checkpoint by their names in Hugging Face's layout."""
    random = np.random.default_rng(seed)
    hidden, intermediate, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    query, key_value = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float16]:
        return random.normal(0, columns**-0.5, (rows, columns)).astype(np.float16)

    def vector(mean: float, length: int = hidden) -> npt.NDArray[np.float16]:
        return random.normal(mean, 0.2, length).astype(np.float16)

    weights = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden), "model.norm.weight": vector(1)}
    if config.get("tie_word_embeddings"):
        weights["model.embed_tokens.weight"] *= np.float16(3)
    else:
        weights["lm_head.weight"] = 3 * matrix(config["vocab_size"], hidden)
    biased = biased_modules(config)
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
            weights[f"model.layers.{layer}.{name}.weight"] = vector(1)
        if "Qwen3ForCausalLM" in (config.get("architectures") or ()):
            for name in ("self_attn.q_norm", "self_attn.k_norm"):
                weights[f"model.layers.{layer}.{name}.weight"] = vector(1, head_dim)
        for name in biased:
            weights[f"model.layers.{layer}.{name}.bias"] = 5 * vector(0, shapes[name][0])
    return weights


def biased_modules(config: Mapping[str, Any]) -> list[str]:
    """Return the modules of a layer that have a bias."""
    attention = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
    if "Qwen2ForCausalLM" in (config.get("architectures") or ()):
        return attention
    mlp = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    has_attention_bias, has_mlp_bias = config.get("attention_bias"), config.get("mlp_bias")
    return [*([*attention, "self_attn.o_proj"] if has_attention_bias else []), *(mlp if has_mlp_bias else [])]


def write_checkpoint(
    folder: Path,
    *,
    weights: Mapping[str, npt.NDArray[Any]] | None = None,
    tokenizer: dict[str, Any] | None = None,
    num_shards: int = 1,
    **config: Any,
) -> Path:
    """Write a checkpoint folder and return it; a `config` value of None takes the key out."""
    folder.mkdir(parents=True, exist_ok=True)
    merged = {name: value for name, value in (CONFIG | config).items() if value is not None}
    description = tokenizer or tokenizer_description(merges=[("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n")])
    end = description["added_tokens"][-1]
    for name, content in (
        ("config.json", merged),
        ("generation_config.json", {"eos_token_id": [end["id"]]}),
        ("tokenizer.json", description),
        ("tokenizer_config.json", {"chat_template": CHAT_TEMPLATE, "eos_token": end["content"]}),
    ):
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    write_weights(folder, random_weights(CONFIG | config) if weights is None else weights, num_shards)
    return folder


def write_weights(folder: Path, weights: Mapping[str, npt.NDArray[Any]], num_shards: int = 1) -> None:
    """Write model.safetensors, or shards of it with an index."""
    if num_shards == 1:
        save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        file_name = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        names = sorted(weights)[shard::num_shards]
        save_file({name: weights[name] for name in names}, folder / file_name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file_name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
