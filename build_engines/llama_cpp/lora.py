"""LoRA adapters in PEFT's format, converted to llama.cpp's."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from build_engines.checkpoint import read_json
from build_engines.errors import UnsupportedAdapter
from build_engines.llama_cpp.gguf_header import GgufBase
from build_engines.llama_cpp.layout import interleave_heads, num_interleaved_heads
from build_engines.llama_cpp.model_config import ARCHITECTURES
from build_engines.llama_cpp.weights import list_tensors

FILES = ("adapter_config.json", "adapter_model.safetensors")

# What changes the meaning of the two matrices, or adds to them; each with the values by which it is off.
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
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq")  # ways of initialization that subtract from the base's weights
_MATRIX = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")

type Matrix = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """An adapter folder whose configuration is one that is converted."""

    folder: Path
    rank: int
    alpha: float  # llama.cpp scales by alpha / rank

    @classmethod
    def load(cls, folder: Path) -> LoraAdapter:
        """Read adapter_config.json.

        Raises:
            BuildError: it is missing or no JSON.
            UnsupportedAdapter: it asks for something that this conversion does not do; names the field.
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
        if type(rank) is not int or rank < 1:
            raise UnsupportedAdapter(f"{path}: r={_text(rank)}: expected a whole number from 1")
        if not isinstance(alpha, int | float) or not 0 < alpha < math.inf:
            raise UnsupportedAdapter(f"{path}: lora_alpha={_text(alpha)}: expected a number above 0")
        # Rank-stabilized LoRA (arXiv:2312.03732) scales by alpha / sqrt(rank).
        return cls(folder, rank, alpha * math.sqrt(rank) if config.get("use_rslora") else float(alpha))


def write_lora(adapter: LoraAdapter, base: GgufBase, path: Path) -> None:
    """Convert an adapter, in F32: it is small, and its products are added to the base's.

    Raises:
        UnsupportedAdapter: the base is of another architecture, or lacks a matrix that the adapter adds to.
    """
    architectures = {gguf.MODEL_ARCH_NAMES[arch]: arch for arch in ARCHITECTURES.values()}
    if base.architecture not in architectures:
        rule = f"expected one of {sorted(architectures)}"
        raise UnsupportedAdapter(f"{adapter.folder}: the base is of architecture {base.architecture}: {rule}")
    arch = architectures[base.architecture]
    names = gguf.get_tensor_name_map(arch, base.num_layers)
    writer = gguf.GGUFWriter(path, base.architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, adapter.alpha)
    for module, lora_a, lora_b in _read_pairs(adapter):
        name = f"{names.get_name(module)}.weight"
        shape = base.shapes.get(name, ())
        # llama.cpp looks rows of the embedding up, and adds nothing to them.
        if len(shape) != 2 or name == "token_embd.weight":
            raise UnsupportedAdapter(f"{adapter.folder}: module {module}: the base model has no such linear layer")
        _check_shapes(adapter, module, (lora_a.shape, lora_b.shape), shape)
        heads = num_interleaved_heads(arch, module, base.num_heads, base.num_kv_heads)
        rows = lora_b if heads is None else interleave_heads(lora_b, heads)
        writer.add_tensor(f"{name}.lora_a", lora_a.astype(np.float32))
        writer.add_tensor(f"{name}.lora_b", rows.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _read_pairs(adapter: LoraAdapter) -> Iterator[tuple[str, Matrix, Matrix]]:
    """Yield the two matrices of each module."""
    path = adapter.folder / FILES[1]
    sides: dict[str, dict[str, Matrix]] = {"A": {}, "B": {}}
    for tensor in list_tensors(path):
        found = _MATRIX.fullmatch(tensor.name)
        if found is None:
            raise UnsupportedAdapter(f"{path}: tensor {tensor.name}: not a matrix of a linear layer's adapter")
        sides[found["side"]][found["module"]] = tensor.read()
    lonely = sorted(sides["A"].keys() ^ sides["B"].keys())
    if lonely or not sides["A"]:
        what = f"module {lonely[0]}: one of lora_A and lora_B is missing" if lonely else "no tensors"
        raise UnsupportedAdapter(f"{path}: {what}")
    for module in sorted(sides["A"]):
        yield module, sides["A"][module], sides["B"][module]


def _check_shapes(
    adapter: LoraAdapter, module: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], base: tuple[int, ...]
) -> None:
    rows, columns = base
    expected = ((adapter.rank, columns), (rows, adapter.rank))
    if shapes != expected:
        raise UnsupportedAdapter(
            f"{adapter.folder}: module {module}: lora_A and lora_B are of shape {_shapes(shapes)}; "
            f"r={adapter.rank} and the base model need {_shapes(expected)}"
        )


def _shapes(shapes: tuple[tuple[int, ...], ...]) -> str:
    return " and ".join(str(list(shape)) for shape in shapes)


def _text(value: object) -> str:
    return json.dumps(value)
