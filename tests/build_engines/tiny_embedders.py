"""Checkpoints of random weights that embed: a BERT, and an embedding model of Qwen3's kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.build_engines.tiny_checkpoint import (
    ADDED_TOKENS,
    CONFIG,
    random_weights,
    tokenizer_description,
    write_weights,
)

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ("the", "red", "green", "fox", "house", "run", "##ing", "##s")
BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "type_vocab_size": 2,
    "vocab_size": len(SPECIAL) + 2 * len(_LETTERS) + len(WORDS),
}
QWEN3 = CONFIG | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "head_dim": 32,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "eos_token_id": 258,
}
CONFIGS = {"bert": BERT, "qwen3": QWEN3}
_POOLING = {"bert": "mean_tokens", "qwen3": "lasttoken"}
type Weights = dict[str, npt.NDArray[np.float32]]


def weights_of(name: str, seed: int) -> Weights:
    """Return the tensors of a checkpoint, by the names that transformers' model without a head has."""
    if name == "bert":
        return _bert_weights(seed)
    weights = random_weights(QWEN3, seed)
    return {name.removeprefix("model."): each.astype(np.float32) for name, each in weights.items()}


def _bert_weights(seed: int) -> Weights:
    random = np.random.default_rng(seed)
    hidden, inner = BERT["hidden_size"], BERT["intermediate_size"]
    tables = {"word": BERT["vocab_size"], "position": BERT["max_position_embeddings"], "token_type": 2}
    shapes = {f"embeddings.{name}_embeddings": (rows, hidden) for name, rows in tables.items()}
    norms = ["embeddings.LayerNorm"]
    for layer in range(BERT["num_hidden_layers"]):
        block = f"encoder.layer.{layer}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes[f"{block}.attention.{name}"] = (hidden, hidden)
        shapes |= {f"{block}.intermediate.dense": (inner, hidden), f"{block}.output.dense": (hidden, inner)}
        norms += [f"{block}.attention.output.LayerNorm", f"{block}.output.LayerNorm"]
    weights: Weights = {}
    for name, shape in shapes.items():
        weights[f"{name}.weight"] = 2 * random.normal(0, shape[1] ** -0.5, shape)
        if not name.startswith("embeddings."):
            weights[f"{name}.bias"] = random.normal(0, 0.2, shape[0])
    for name in norms:
        weights |= {f"{name}.weight": random.normal(1, 0.2, hidden), f"{name}.bias": random.normal(0, 0.2, hidden)}
    return {name: each.astype(np.float32) for name, each in weights.items()}


def added_around(before: dict[str, int], behind: dict[str, int]) -> dict[str, Any]:
    """Return the step of a tokenizer.json that adds tokens, with these ids, to a text."""
    first, last = ([{"SpecialToken": {"id": token, "type_id": 0}} for token in part] for part in (before, behind))
    added = [*first, {"Sequence": {"id": "A", "type_id": 0}}, *last]
    special = {token: {"id": token, "ids": [number], "tokens": [token]} for token, number in (before | behind).items()}
    return {"type": "TemplateProcessing", "single": added, "pair": added, "special_tokens": special}


def byte_level_description() -> dict[str, Any]:
    """Return a tokenizer.json of Qwen3-Embedding's kind: it puts an end token behind a text."""
    return tokenizer_description(merges=[("t", "h")]) | {"post_processor": added_around({}, {ADDED_TOKENS[-1]: 258})}


def word_piece_description() -> dict[str, Any]:
    """Return a tokenizer.json of BERT's kind."""
    tokens = [*SPECIAL, *_LETTERS, *(f"##{letter}" for letter in _LETTERS), *WORDS]
    description = tokenizer_description(SPECIAL)
    for index, added in enumerate(description["added_tokens"]):
        added["id"] = index
    return description | {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": added_around({"[CLS]": 2}, {"[SEP]": 3}),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {token: index for index, token in enumerate(tokens)},
        },
    }


def write_embedder(folder: Path, name: str, seed: int = 0, **pooling: Any) -> Path:
    """Write a checkpoint with the files of sentence-transformers, and return its folder."""
    (folder / "1_Pooling").mkdir(parents=True)
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(
            (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))
        )
    ]
    special = {f"{token[1:-1].lower()}_token": token for token in SPECIAL}
    files: dict[str, Mapping[str, Any] | list[Any]] = {
        "config.json": CONFIGS[name],
        "modules.json": modules,
        "1_Pooling/config.json": pooling or {f"pooling_mode_{_POOLING[name]}": True, "include_prompt": True},
        "tokenizer.json": word_piece_description() if name == "bert" else byte_level_description(),
        "tokenizer_config.json": special if name == "bert" else {},
    }
    for path, content in files.items():
        (folder / path).write_text(json.dumps(content), encoding="utf-8")
    write_weights(folder, weights_of(name, seed))
    return folder
