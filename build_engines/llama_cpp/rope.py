"""How a checkpoint rotates queries and keys, said as llama.cpp takes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from build_engines.errors import UnsupportedCheckpoint

# By type: the numbers that config.json must give.
_REQUIRED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
# What else it may give, and by which values that changes nothing. llama.cpp takes no other betas of these models.
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
    """Rotary position embeddings (arXiv:2104.09864), with the scaling for contexts longer than trained on."""

    theta: float
    scaling: str = "default"
    numbers: Mapping[str, float]  # of the scaling, by the names in config.json

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Rope:
        """Read config.json: rope_theta and rope_scaling, which newer ones keep together in rope_parameters.

        Raises:
            UnsupportedCheckpoint: a type or a field of it that is not converted; names it.
        """
        field, given = _given(config)
        theta = given.pop("rope_theta", None) or config.get("rope_theta") or _DEFAULT_THETA
        scaling, legacy = given.pop("rope_type", None), given.pop("type", None)
        scaling = scaling or legacy or "default"
        if scaling not in _REQUIRED:
            rule = f"expected one of {', '.join(_REQUIRED)}"
            raise UnsupportedCheckpoint(f"config.json: {field}.rope_type={scaling!r}: {rule}")
        optional = ("attention_factor",) if scaling == "yarn" and given.get("attention_factor") is not None else ()
        names = (*_REQUIRED[scaling], *optional)
        numbers = {name: positive_number(f"{field}.{name}", given.pop(name, None)) for name in names}
        if scaling == "llama3" and numbers["high_freq_factor"] <= numbers["low_freq_factor"]:
            rule = f"expected more than low_freq_factor={numbers['low_freq_factor']}"
            raise UnsupportedCheckpoint(f"config.json: {field}.high_freq_factor={numbers['high_freq_factor']}: {rule}")
        given.pop("original_max_position_embeddings", None)  # says nothing where it is not required
        for name, value in given.items():
            neutral = _NEUTRAL.get(name, (None,))
            if value not in neutral:
                rule = f"with rope_type={scaling!r}, expected {neutral[0]!r}"
                raise UnsupportedCheckpoint(f"config.json: {field}.{name}={value!r}: {rule}")
        return cls(theta=positive_number("rope_theta", theta), scaling=scaling, numbers=numbers)

    def write(self, writer: gguf.GGUFWriter) -> None:
        """Write all of it that is metadata in llama.cpp."""
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
            # llama.cpp multiplies it by the one of the paper (arXiv:2309.00071), Hugging Face puts it in its place.
            of_paper = 1 + 0.1 * math.log(max(factor, 1))
            writer.add_rope_scaling_attn_factors(self.numbers["attention_factor"] / of_paper)

    def frequency_factors(self, head_dim: int) -> npt.NDArray[np.float32] | None:
        """Return what llama.cpp divides each pair's frequency by, float32 [head_dim / 2]; None where it needs none.

        Source: Llama 3.1's model card and code: long waves are stretched by `factor`, short ones kept, those between
        the two limits interpolated.
        """
        if self.scaling != "llama3":
            return None
        factor, low, high = (self.numbers[name] for name in ("factor", "low_freq_factor", "high_freq_factor"))
        wavelengths = 2 * math.pi * self.theta ** (np.arange(0, head_dim, 2) / head_dim)
        num_waves = self.numbers["original_max_position_embeddings"] / wavelengths
        share_kept = np.clip((num_waves - low) / (high - low), 0, 1)
        return (1 / ((1 - share_kept) / factor + share_kept)).astype(np.float32)


def _given(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return which field of config.json says how positions are scaled, and a copy of what it says."""
    fields = [name for name in ("rope_parameters", "rope_scaling") if config.get(name)] or ["rope_scaling"]
    if len(fields) > 1:
        raise UnsupportedCheckpoint("config.json: rope_parameters and rope_scaling: expected one of the two")
    given = config.get(fields[0]) or {}
    if not isinstance(given, dict):
        raise UnsupportedCheckpoint(f"config.json: {fields[0]}={given!r}: expected an object")
    # As in transformers: config.json may also say it beside the others, or leave it out.
    name = "original_max_position_embeddings"
    trained = config.get(name) or given.get(name) or config.get("max_position_embeddings")
    return fields[0], given | {name: trained}


def positive_number(field: str, value: object) -> float:
    """Return a number of config.json.

    Raises:
        UnsupportedCheckpoint: it is none, or not above 0.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UnsupportedCheckpoint(f"config.json: {field}={value!r}: expected a number above 0")
    return float(value)
