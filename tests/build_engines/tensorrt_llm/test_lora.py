"""Adapters for engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build_engines.errors import BuildError, UnsupportedAdapter
from build_engines.tensorrt_llm.lora import MODULES, lora_limits
from build_engines.tensorrt_llm.recipe import LoraLimits
from tests.build_engines.tensorrt_llm.tiny_model import tiny_entry
from tests.build_engines.tiny_adapter import random_pairs, tensors_of, write_adapter
from tests.build_engines.tiny_checkpoint import random_weights

WEIGHTS = random_weights()


def adapter(folder: Path, *ends: str, rank: int = 4, **config: Any) -> Path:
    return write_adapter(folder, tensors_of(random_pairs(WEIGHTS, ends, rank)), r=rank, **config)


def test_an_engine_has_the_layers_and_the_largest_rank_of_its_adapters(tmp_path: Path) -> None:
    adapters = {
        "a": adapter(tmp_path / "a", "mlp.up_proj", "q_proj"),
        "b": adapter(tmp_path / "b", "q_proj", "o_proj", rank=8),
    }
    limits = lora_limits(adapters, tiny_entry("llama", tmp_path))
    assert limits == LoraLimits(max_rank=8, modules=("attn_q", "attn_dense", "mlp_gate"))


def test_every_linear_layer_has_a_name(tmp_path: Path) -> None:
    ends = [name.partition(".")[2] for name in MODULES]
    limits = lora_limits({"a": adapter(tmp_path / "a", *ends)}, tiny_entry("qwen", tmp_path))
    assert limits is not None
    assert limits.modules == (
        *("attn_q", "attn_k", "attn_v", "attn_dense"),
        *("mlp_h_to_4h", "mlp_4h_to_h", "mlp_gate"),
    )


def tensor(module: str, side: str = "A", shape: tuple[int, ...] = (4, 48)) -> dict[str, Any]:
    return {f"base_model.model.{module}.lora_{side}.weight": np.zeros(shape, np.float32)}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (tensor("model.embed_tokens"), r"model\.embed_tokens\.lora_A\.weight: expected lora_A or lora_B of self_attn"),
        (tensor("model.layers.0.mlp.experts.1.up_proj"), "expected lora_A or lora_B of"),
        (tensor("model.layers.2.self_attn.q_proj"), "tiny/llama has 2 layers"),
        (tensor("model.layers.0.self_attn.q_proj", shape=(8, 48)), r"\[8, 48\]: r=4 and tiny/llama need \[4, 48\]"),
        (tensor("model.layers.0.self_attn.q_proj", "B", (64, 8)), r"\[64, 8\]: r=4 and tiny/llama need \[64, 4\]"),
        (tensor("model.layers.0.mlp.down_proj"), r"\[4, 48\]: r=4 and tiny/llama need \[4, 80\]"),
        (tensor("model.layers.1.mlp.up_proj"), r"layer 1, mlp\.up_proj: has lora_A and no lora_B"),
        ({}, "no tensors"),
    ],
)
def test_an_adapter_that_an_engine_cannot_run_is_refused(tensors: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", tensors)
    with pytest.raises(UnsupportedAdapter, match=message):
        lora_limits({"a": folder}, tiny_entry("llama", tmp_path))


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "a", "q_proj")
    (folder / "adapter_model.safetensors").write_bytes(b"short")
    with pytest.raises(BuildError, match=r"adapter_model\.safetensors: cut short"):
        lora_limits({"a": folder}, tiny_entry("llama", tmp_path))
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(BuildError, match=r"adapter_model\.safetensors: no such file"):
        lora_limits({"a": folder}, tiny_entry("llama", tmp_path))


def test_adapters_of_latent_attention_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedAdapter, match="tiny/deepseek_v2: adapters of latent attention"):
        lora_limits({"a": tmp_path}, tiny_entry("deepseek_v2", tmp_path))
