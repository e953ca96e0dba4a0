"""Checkpoints of random weights that score pairs: a BERT with a classification head, and a judge of Qwen3's kind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.build_engines.tiny_checkpoint import tokenizer_description, write_weights
from tests.build_engines.tiny_embedders import BERT, QWEN3, Weights, weights_of, word_piece_description

TRUE_ID, FALSE_ID = 40, 77
LABELS = {"cross_encoder": ("LABEL_0",), "classifier": ("good", "bad", "none")}
_PAIR = [("[CLS]", 0), ("A", 0), ("[SEP]", 0), ("B", 1), ("[SEP]", 1)]
_LOGIT_SCORE = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
    {
        "idx": 1,
        "name": "1",
        "path": "1_LogitScore",
        "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
    },
]


def classifier_weights(seed: int, num_labels: int) -> Weights:
    """Return the tensors of a BERT with a head, by the names of transformers' BertForSequenceClassification."""
    random, hidden = np.random.default_rng(seed + 1), BERT["hidden_size"]
    head = {
        "bert.pooler.dense.weight": random.normal(0, 0.3, (hidden, hidden)),
        "bert.pooler.dense.bias": random.normal(0, 0.2, hidden),
        "classifier.weight": random.normal(0, 0.3, (num_labels, hidden)),
        "classifier.bias": random.normal(0, 0.2, num_labels),
    }
    encoder = {f"bert.{name}": each for name, each in weights_of("bert", seed).items()}
    return encoder | {name: each.astype(np.float32) for name, each in head.items()}


def cross_encoder_description() -> dict[str, Any]:
    """Return a tokenizer.json of BERT's kind with its tokens around pairs."""
    description = word_piece_description()
    description["post_processor"]["pair"] = [
        {"Sequence" if part in "AB" else "SpecialToken": {"id": part, "type_id": type_id}} for part, type_id in _PAIR
    ]
    return description


def write_cross_encoder(folder: Path, seed: int = 0, labels: Sequence[str] = ("LABEL_0",), **config: Any) -> Path:
    """Write a checkpoint of BertForSequenceClassification, and return its folder."""
    named = {"id2label": {str(number): label for number, label in enumerate(labels)}}
    architecture = {"architectures": ["BertForSequenceClassification"]}
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    files = {
        "config.json": BERT | architecture | named | config,
        "tokenizer.json": cross_encoder_description(),
        "tokenizer_config.json": special,
    }
    return _write(folder, files, classifier_weights(seed, len(labels)))


def write_judge(folder: Path, seed: int = 0, *, is_tied: bool = True, **config: Any) -> Path:
    """Write a checkpoint of Qwen3-Reranker's kind with the files of sentence-transformers, and return its folder."""
    weights = {f"model.{name}": each for name, each in weights_of("qwen3", seed).items()}
    if not is_tied:
        shape = weights["model.embed_tokens.weight"].shape
        weights["lm_head.weight"] = np.random.default_rng(seed + 1).normal(0, 0.3, shape).astype(np.float32)
    files: dict[str, Any] = {
        "config.json": QWEN3 | {"tie_word_embeddings": is_tied},
        "modules.json": _LOGIT_SCORE,
        "1_LogitScore/config.json": {"true_token_id": TRUE_ID, "false_token_id": FALSE_ID} | config,
        "tokenizer.json": tokenizer_description(merges=[("t", "h")]),
        "tokenizer_config.json": {},
    }
    return _write(folder, files, weights)


def write_scorer(folder: Path, name: str, seed: int = 0) -> Path:
    """Write the checkpoint of a fixture of ScoreReference."""
    labels = LABELS.get(name)
    return write_judge(folder, seed) if labels is None else write_cross_encoder(folder, seed, labels)


def _write(folder: Path, files: Mapping[str, Any], weights: Weights) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(json.dumps(content), encoding="utf-8")
    write_weights(folder, weights)
    return folder
