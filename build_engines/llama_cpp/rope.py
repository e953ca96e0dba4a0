"""Rotary position embeddings of a checkpoint, converted to llama.cpp's metadata."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from build_engines.checkpoint import MAX_WHOLE_NUMBER, positive_number
from build_engines.errors import UnsupportedCheckpoint

# By type: the required numbers of config.json.
_REQUIRED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_MOST = {"original_max_position_embeddings": (MAX_WHOLE_NUMBER,)}
# Other fields, with their neutral values. llama.cpp supports no other betas for these models.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "beta_fast": (32, None),
    "beta_slow": (1, None),
    "mscale": (None,),
    "mscale_all_dim": (None,),
    "partial_rotary_factor": (1, None),
    "truncate": (True, None),
}
_DEFAULT_THETA = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotary position embeddings (arXiv:2104.09864), with the scaling for long contexts."""

    theta: float
    scaling: str = "default"
    numbers: Mapping[str, float]  # the scaling's, by their names in config.json

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Rope:
        """Read config.json: rope_theta and rope_scaling, or rope_parameters with both.

        Raises:
            UnsupportedCheckpoint: a type or a field is not supported; names it.
        """
        field, given = _given(config)
        theta = given.pop("rope_theta", None) or config.get("rope_theta") or _DEFAULT_THETA
        scaling, legacy = given.pop("rope_type", None), given.pop("type", None)
        scaling = scaling or legacy or "default"
        if not isinstance(scaling, str) or scaling not in _REQUIRED:
            rule = f"expected one of {', '.join(_REQUIRED)}"
            raise UnsupportedCheckpoint(f"config.json: {field}.rope_type={scaling!r}: {rule}")
        optional = ("attention_factor",) if scaling == "yarn" and given.get("attention_factor") is not None else ()
        names = (*_REQUIRED[scaling], *optional)
        numbers = {
            name: positive_number(f"config.json: {field}.{name}", given.pop(name, None), *_MOST.get(name, ()))
            for name in names
        }
        if scaling == "llama3" and numbers["high_freq_factor"] <= numbers["low_freq_factor"]:
            rule = f"expected more than low_freq_factor={numbers['low_freq_factor']}"
            raise UnsupportedCheckpoint(f"config.json: {field}.high_freq_factor={numbers['high_freq_factor']}: {rule}")
        given.pop("original_max_position_embeddings", None)  # it has no meaning for other types
        for name, value in given.items():
            neutral = _NEUTRAL.get(name, (None,))
            if value not in neutral:
                rule = f"with rope_type={scaling!r}, expected {neutral[0]!r}"
                raise UnsupportedCheckpoint(f"config.json: {field}.{name}={value!r}: {rule}")
        return cls(theta=positive_number("config.json: rope_theta", theta), scaling=scaling, numbers=numbers)

    def write(self, writer: gguf.GGUFWriter) -> None:
        """Write the metadata for llama.cpp."""
        writer.add_rope_freq_base(self.theta)
        if self.scaling not in ("linear", "yarn"):
            return
        writer.add_rope_scaling_type(gguf.RopeScalingType(self.scaling))
        factor = self.numbers["factor"]
        writer.add_rope_scaling_factor(factor)
        if self.scaling == "linear":
            return
        writer.add_rope_scaling_orig_ctx_len(int(self.numbers["original_max_position_embeddings"]))
        if "attention_factor" in self.numbers:
            # llama.cpp multiplies it by the factor of the paper (arXiv:2309.00071), which it replaces in Hugging Face.
            of_paper = 1 + 0.1 * math.log(max(factor, 1))
            writer.add_rope_scaling_attn_factors(self.numbers["attention_factor"] / of_paper)

    def frequency_factors(self, head_dim: int) -> npt.NDArray[np.float32] | None:
        """Return llama.cpp's divisors of each pair's frequency, float32 [head_dim / 2]; None: no divisors.

        Source: Llama 3.1's model card and code: long waves are stretched by `factor`, short ones are kept, and
        waves between the two limits are interpolated.
        """
        if self.scaling != "llama3":
            return None
        factor, low, high = (self.numbers[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
        wavelengths = 2 * math.pi * self.theta ** (np.arange(0, head_dim, 2) / head_dim)
        num_waves = self.numbers["original_max_position_embeddings"] / wavelengths
        share_kept = np.clip((num_waves - low) / (high - low), 0, 1)
        return (1 / ((1 - share_kept) / factor + share_kept)).astype(np.float32)


def _given(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and a copy of the field of config.json with the scaling of positions."""
    fields = [name for name in ("rope_parameters", "rope_scaling") if config.get(name)] or ["rope_scaling"]
    if len(fields) > 1:
        raise UnsupportedCheckpoint("config.json: rope_parameters and rope_scaling: expected one of the two")
    given = config.get(fields[0]) or {}
    # As in transformers: this number may also be outside of the field, or missing.
    name = "original_max_position_embeddings"
    trained = config.get(name) or given.get(name) or config.get("max_position_embeddings")
    return fields[0], given | {name: trained}
