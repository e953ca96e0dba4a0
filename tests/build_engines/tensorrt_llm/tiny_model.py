"""A catalog of tiny models, one of each family, and their checkpoints of random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from build_engines.catalog import Catalog
from build_engines.model_entry import ModelEntry
from tests.build_engines.tiny_checkpoint import CONFIG, write_checkpoint

CLASS_NAMES = {
    "llama": "LlamaForCausalLM",
    "qwen": "Qwen2ForCausalLM",
    "gemma": "Gemma2ForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
}


def write_catalog(path: Path, **architecture: Any) -> Path:
    """Write the catalog and return its path; each model is called tiny/FAMILY."""
    models = {f"tiny/{family}": _fields(family, class_name) for family, class_name in CLASS_NAMES.items()}
    for fields in models.values():
        fields["architecture"] |= architecture
    path.write_text(yaml.safe_dump({"models": models}), encoding="utf-8")
    return path


def tiny_entry(family: str, folder: Path, **architecture: Any) -> ModelEntry:
    """Return the entry of one of them."""
    return Catalog.load(write_catalog(folder / "catalog.yaml", **architecture)).find(f"tiny/{family}")


def write_tiny_checkpoint(folder: Path, family: str = "llama", *, num_shards: int = 2, **config: Any) -> Path:
    """Write a checkpoint that fits its entry."""
    return write_checkpoint(folder, num_shards=num_shards, **({"architectures": [CLASS_NAMES[family]]} | config))


def _fields(family: str, class_name: str) -> dict[str, Any]:
    return {
        "family": family,
        "architecture": {
            "class_name": class_name,
            "num_layers": CONFIG["num_hidden_layers"],
            "hidden_size": CONFIG["hidden_size"],
            "num_heads": CONFIG["num_attention_heads"],
            "num_kv_heads": CONFIG["num_key_value_heads"],
            "head_size": CONFIG["head_dim"],
            "intermediate_size": CONFIG["intermediate_size"],
            "vocab_size": CONFIG["vocab_size"],
        },
        "context_window": CONFIG["max_position_embeddings"],
        "has_pipeline_parallelism": family != "gemma",
        "tokenizer_kind": "byte-level BPE",
        "eos_token_ids": [261],
        "tool_call_format": "plain",
        "license": "none",
        "precisions": ["bf16"] if family == "deepseek_v2" else ["bf16", "fp8", "nvfp4"],
    }
