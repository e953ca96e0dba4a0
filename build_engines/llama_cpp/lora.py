"""Converts LoRA adapters from PEFT's format to llama.cpp's."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from build_engines.errors import UnsupportedAdapter
from build_engines.llama_cpp.gguf_header import GgufBase, read_gguf_base
from build_engines.llama_cpp.layout import interleave_heads, num_interleaved_heads
from build_engines.llama_cpp.model_config import ARCHITECTURES
from build_engines.llama_cpp.weights import list_tensors
from build_engines.peft import FILES, LoraAdapter
from model_repository.runtimes import ADAPTER_FILE

_MATRIX = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")

type Matrix = npt.NDArray[Any]


def write_served(adapter: LoraAdapter, folder: Path, artifact_dir: Path, catalogs: Collection[Path]) -> tuple[str, ...]:
    """Convert an adapter for the model of an artifact; it names no modules.

    Raises:
        UnsupportedAdapter: as for `write_lora`.
    """
    del catalogs
    # A split model's first part has the metadata.
    first = min(artifact_dir.glob("model*.gguf"), default=artifact_dir / "model.gguf")
    write_lora(adapter, read_gguf_base(first), folder / ADAPTER_FILE)
    return ()


def write_lora(adapter: LoraAdapter, base: GgufBase, path: Path) -> None:
    """Convert an adapter to F32, because it is small.

    Raises:
        UnsupportedAdapter: the base is of another architecture, or has no matrix for a module.
    """
    architectures = {gguf.MODEL_ARCH_NAMES[each.arch]: each.arch for each in ARCHITECTURES.values()}
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
        # llama.cpp has no adapters for the embedding.
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
    unpaired = sorted(sides["A"].keys() ^ sides["B"].keys())
    if unpaired or not sides["A"]:
        error = f"module {unpaired[0]}: one of lora_A and lora_B is missing" if unpaired else "no tensors"
        raise UnsupportedAdapter(f"{path}: {error}")
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
