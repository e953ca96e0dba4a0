"""LoRA adapters in PEFT's format: a configuration and the matrices."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_engines.checkpoint import MAX_WHOLE_NUMBER
from build_engines.errors import UnsupportedAdapter
from build_engines.json_files import read_json

FILES = ("adapter_config.json", "adapter_model.safetensors")

# Fields that change the meaning of the two matrices, or add to them, with their neutral values.
_OFF: tuple[Any, ...] = (None, False, [], {})
_REFUSED = {
    "use_dora": _OFF,
    "use_qalora": _OFF,
    "bias": (None, "none"),
    "lora_bias": _OFF,
    "modules_to_save": _OFF,
    "fan_in_fan_out": _OFF,
    "rank_pattern": _OFF,
    "alpha_pattern": _OFF,
    "layer_replication": _OFF,
    "trainable_token_indices": _OFF,
    "target_parameters": _OFF,
    "alora_invocation_tokens": _OFF,
    "arrow_config": _OFF,
}
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq")  # initializations that change the base's weights


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """An adapter folder with a supported configuration."""

    folder: Path
    rank: int
    alpha: float  # the product is scaled by alpha / rank

    @classmethod
    def load(cls, folder: Path) -> LoraAdapter:
        """Read adapter_config.json.

        Raises:
            BuildError: it is missing or not JSON.
            UnsupportedAdapter: a field has an unsupported value; names the field.
        """
        path = folder / FILES[0]
        config = read_json(path)
        if config.get("peft_type") != "LORA":
            raise UnsupportedAdapter(f"{path}: peft_type={_text(config.get('peft_type'))}: expected LORA")
        for field, off in _REFUSED.items():
            if config.get(field) not in off:
                raise UnsupportedAdapter(f"{path}: {field}={_text(config[field])}: is not converted")
        initialization = config.get("init_lora_weights")
        if str(initialization).lower().startswith(_CHANGES_BASE):
            rule = "changes the base model too: save the adapter for the unchanged base"
            raise UnsupportedAdapter(f"{path}: init_lora_weights={_text(initialization)}: {rule}")
        rank, alpha = config.get("r"), config.get("lora_alpha")
        if type(rank) is not int or not 1 <= rank <= MAX_WHOLE_NUMBER:
            raise UnsupportedAdapter(f"{path}: r={_text(rank)}: expected a whole number from 1 to {MAX_WHOLE_NUMBER}")
        if not isinstance(alpha, int | float) or not 0 < alpha <= MAX_WHOLE_NUMBER:
            rule = f"expected a number above 0, at most {MAX_WHOLE_NUMBER}"
            raise UnsupportedAdapter(f"{path}: lora_alpha={_text(alpha)}: {rule}")
        # Rank-stabilized LoRA (arXiv:2312.03732) scales by alpha / sqrt(rank).
        return cls(folder, rank, alpha * math.sqrt(rank) if config.get("use_rslora") else float(alpha))


def _text(value: object) -> str:
    return json.dumps(value)
