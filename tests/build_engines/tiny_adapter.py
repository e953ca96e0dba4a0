"""A LoRA adapter of random weights for the tiny checkpoint, in PEFT's format."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from tests.build_engines.tiny_checkpoint import Weights

type Pairs = dict[str, tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]  # lora_A and lora_B of each module

RANK = 4
CONFIG: dict[str, Any] = {  # as PEFT writes it, what is off included
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "bias": "none",
    "fan_in_fan_out": False,
    "init_lora_weights": True,
    "layer_replication": None,
    "lora_alpha": 8,
    "lora_bias": False,
    "lora_dropout": 0.05,
    "modules_to_save": None,
    "peft_type": "LORA",
    "r": RANK,
    "rank_pattern": {},
    "target_modules": ["q_proj", "k_proj"],
    "task_type": "CAUSAL_LM",
    "use_dora": False,
    "use_rslora": False,
}


def random_pairs(weights: Weights, ends: Iterable[str], rank: int = RANK) -> Pairs:
    """Return matrices for the modules with these name endings: a change about as large as the weights."""
    random = np.random.default_rng(1)
    pairs = {}
    for name in sorted(weights):
        module = name.removesuffix(".weight")
        if module.endswith(tuple(ends)):
            rows, columns = weights[name].shape
            lora_a = random.normal(0, columns**-0.5, (rank, columns)).astype(np.float32)
            pairs[module] = (lora_a, random.normal(0, rank**-0.5, (rows, rank)).astype(np.float32))
    return pairs


def tensors_of(pairs: Pairs) -> dict[str, npt.NDArray[np.float32]]:
    """Return them by PEFT's names."""
    prefix = "base_model.model."
    return {f"{prefix}{module}.lora_A.weight": lora_a for module, (lora_a, _) in pairs.items()} | {
        f"{prefix}{module}.lora_B.weight": lora_b for module, (_, lora_b) in pairs.items()
    }


def write_adapter(folder: Path, tensors: dict[str, npt.NDArray[Any]], **config: Any) -> Path:
    """Write an adapter folder and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | config), encoding="utf-8")
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def merged(weights: Weights, pairs: Pairs, scale: float) -> dict[str, npt.NDArray[Any]]:
    """Return the weights of a checkpoint that needs no adapter, F32 where they differ."""
    changes = {f"{module}.weight": scale * lora_b @ lora_a for module, (lora_a, lora_b) in pairs.items()}
    return weights | {name: weights[name].astype(np.float32) + change for name, change in changes.items()}
