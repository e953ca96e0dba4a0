"""LoRA adapters in PEFT's format, for engines that are built for them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open

from build_engines.architecture import Architecture
from build_engines.artifact import Manifest
from build_engines.catalog import Catalog
from build_engines.errors import BuildError, UnsupportedAdapter
from build_engines.model_entry import Family, ModelEntry
from build_engines.peft import FILES, LoraAdapter
from build_engines.tensorrt_llm.recipe import LoraLimits

# By PEFT's names of linear layers: TensorRT-LLM's, and the kinds of their input and output, as `_shape` has them.
MODULES = {
    "self_attn.q_proj": ("attn_q", "hidden", "q"),
    "self_attn.k_proj": ("attn_k", "hidden", "kv"),
    "self_attn.v_proj": ("attn_v", "hidden", "kv"),
    "self_attn.o_proj": ("attn_dense", "q", "hidden"),
    "mlp.gate_proj": ("mlp_h_to_4h", "hidden", "intermediate"),
    "mlp.down_proj": ("mlp_4h_to_h", "intermediate", "hidden"),
    "mlp.up_proj": ("mlp_gate", "hidden", "intermediate"),
}
_TENSOR = re.compile(
    r"base_model\.model\.model\.layers\.(?P<layer>\d+)\.(?P<module>\w+\.\w+)\.lora_(?P<side>[AB])\.weight"
)


def lora_limits(adapters: Mapping[str, Path], entry: ModelEntry) -> LoraLimits | None:
    """Return the limits of an engine that can run these adapters; None without adapters.

    Raises:
        BuildError: a file is missing or damaged.
        UnsupportedAdapter: TensorRT-LLM cannot run an adapter with this model.
    """
    if not adapters:
        return None
    if entry.family is Family.DEEPSEEK_V2 or entry.architecture.latent_attention is not None:
        raise UnsupportedAdapter(f"--adapter: {entry.model_id}: adapters of latent attention are not served")
    modules: set[str] = set()
    ranks = []
    for folder in adapters.values():
        adapter = LoraAdapter.load(folder)
        modules |= _modules(folder / FILES[1], adapter.rank, entry)
        ranks.append(adapter.rank)
    return LoraLimits(max_rank=max(ranks), modules=tuple(name for name, _, _ in MODULES.values() if name in modules))


def write_served(adapter: LoraAdapter, folder: Path, artifact_dir: Path, catalogs: Collection[Path]) -> tuple[str, ...]:
    """Check an adapter against the model of an artifact, copy it, and return the names of its modules.

    Raises:
        BuildError: as for `lora_limits`, or the catalog has no such model.
    """
    entry = Catalog.load(*catalogs).find(Manifest.load(artifact_dir).model_id)
    limits = lora_limits({"": adapter.folder}, entry)
    assert limits is not None
    copy_adapter(adapter.folder, folder)
    return limits.modules


def copy_adapter(source: Path, target: Path) -> None:
    """Copy an adapter's two files into an artifact."""
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(source / name, target / name)


def _modules(path: Path, rank: int, entry: ModelEntry) -> set[str]:
    """Return TensorRT-LLM's names of the changed layers."""
    modules, sides = set(), set()
    for name, shape in _shapes(path).items():
        found = _TENSOR.fullmatch(name)
        if found is None or found["module"] not in MODULES:
            raise UnsupportedAdapter(f"{path}: tensor {name}: expected lora_A or lora_B of {', '.join(MODULES)}")
        if int(found["layer"]) >= entry.architecture.num_layers:
            raise UnsupportedAdapter(
                f"{path}: tensor {name}: {entry.model_id} has {entry.architecture.num_layers} layers"
            )
        expected = _shape(found["module"], found["side"], rank, entry.architecture)
        if shape != expected:
            rule = f"r={rank} and {entry.model_id} need {list(expected)}"
            raise UnsupportedAdapter(f"{path}: tensor {name}: shape {list(shape)}: {rule}")
        modules.add(MODULES[found["module"]][0])
        sides.add((found["layer"], found["module"], found["side"]))
    for layer, module, side in sorted(sides):
        other = "B" if side == "A" else "A"
        if (layer, module, other) not in sides:
            raise UnsupportedAdapter(f"{path}: layer {layer}, {module}: has lora_{side} and no lora_{other}")
    if not modules:
        raise UnsupportedAdapter(f"{path}: no tensors")
    return modules


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as exc:
        raise BuildError(f"{path}: no such file") from exc
    except (OSError, SafetensorError) as exc:
        raise BuildError(f"{path}: cut short, or no safetensors file ({exc})") from exc


def _shape(module: str, side: str, rank: int, architecture: Architecture) -> tuple[int, int]:
    """Return the shape of one of an adapter's matrices: A has the layer's input, B its output."""
    sizes = {
        "hidden": architecture.hidden_size,
        "intermediate": architecture.intermediate_size,
        "q": architecture.num_heads * architecture.head_size,
        "kv": architecture.num_kv_heads * architecture.head_size,
    }
    _, inputs, outputs = MODULES[module]
    return (rank, sizes[inputs]) if side == "A" else (sizes[outputs], rank)
