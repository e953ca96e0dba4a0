"""LoRA adapters in PEFT's format, for an engine that is built to take them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from build_engines.errors import BuildError, UnsupportedAdapter
from build_engines.llama_cpp.lora import FILES, LoraAdapter
from build_engines.model_entry import Family, ModelEntry
from build_engines.tensorrt_llm.recipe import LoraLimits

# PEFT's names of linear layers, and TensorRT-LLM's.
MODULES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_dense",
    "mlp.gate_proj": "mlp_h_to_4h",
    "mlp.down_proj": "mlp_4h_to_h",
    "mlp.up_proj": "mlp_gate",
}
_TENSOR = re.compile(
    r"base_model\.model\.model\.layers\.(?P<layer>\d+)\.(?P<module>\w+\.\w+)\.lora_(?P<side>[AB])\.weight"
)


def lora_limits(adapters: Mapping[str, Path], entry: ModelEntry) -> LoraLimits | None:
    """Return what an engine must take so that it can run these adapters; None without any.

    Raises:
        BuildError: a file is missing or damaged.
        UnsupportedAdapter: an adapter that TensorRT-LLM cannot run beside this model.
    """
    if not adapters:
        return None
    if entry.family is Family.DEEPSEEK_V2:
        raise UnsupportedAdapter(f"--adapter: {entry.model_id}: adapters of latent attention have no names in engines")
    modules: set[str] = set()
    ranks = []
    for folder in adapters.values():
        adapter = LoraAdapter.load(folder)
        modules |= _modules(folder / FILES[1], adapter.rank, entry)
        ranks.append(adapter.rank)
    return LoraLimits(max_rank=max(ranks), modules=tuple(name for name in MODULES.values() if name in modules))


def copy_adapter(source: Path, target: Path) -> None:
    """Copy an adapter's two files into an artifact."""
    target.mkdir(parents=True)
    for name in FILES:
        shutil.copyfile(source / name, target / name)


def _modules(path: Path, rank: int, entry: ModelEntry) -> set[str]:
    """Return TensorRT-LLM's names of the layers that an adapter changes."""
    modules = set()
    try:
        with safe_open(path, framework="numpy") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as exc:
        raise BuildError(f"{path}: no such file") from exc
    except (OSError, SafetensorError) as exc:
        raise BuildError(f"{path}: cut short, or no safetensors file ({exc})") from exc
    for name, shape in shapes.items():
        found = _TENSOR.fullmatch(name)
        if found is None or found["module"] not in MODULES:
            raise UnsupportedAdapter(f"{path}: tensor {name}: expected lora_A or lora_B of {', '.join(MODULES)}")
        if int(found["layer"]) >= entry.architecture.num_layers:
            raise UnsupportedAdapter(
                f"{path}: tensor {name}: {entry.model_id} has {entry.architecture.num_layers} layers"
            )
        if len(shape) != 2 or shape[0 if found["side"] == "A" else 1] != rank:
            raise UnsupportedAdapter(f"{path}: tensor {name}: shape {list(shape)} is not of rank r={rank}")
        modules.add(MODULES[found["module"]])
    if not modules:
        raise UnsupportedAdapter(f"{path}: no tensors")
    return modules
