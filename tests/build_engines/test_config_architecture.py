"""Shapes that are read from config.json: those of the catalog, the sums that authors publish, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build_engines.architecture import Architecture
from build_engines.catalog import Catalog
from build_engines.checkpoint import read_config
from build_engines.config_architecture import architecture_of
from build_engines.errors import UnsupportedCheckpoint

CATALOG = Catalog.load()
DATA = json.loads((Path(__file__).parents[1] / "data" / "model_configs.json").read_text(encoding="utf-8"))
CONFIGS: dict[str, dict[str, Any]] = DATA["configs"]
KNOWN = {entry.model_id for entry in CATALOG}


def read(folder: Path, config: dict[str, Any]) -> Architecture:
    (folder / "config.json").write_text(json.dumps(config))
    language, whole = read_config(folder)
    return architecture_of(language, language if whole is None else whole)


@pytest.mark.parametrize("model_id", sorted(KNOWN & CONFIGS.keys()))
def test_the_shape_is_that_of_the_catalog(model_id: str, tmp_path: Path) -> None:
    assert read(tmp_path, CONFIGS[model_id]) == CATALOG.find(model_id).architecture


@pytest.mark.parametrize(
    ("model_id", "billions"),
    [
        ("Qwen/Qwen3-235B-A22B", 235),
        ("Qwen/Qwen3-Coder-480B-A35B-Instruct", 480),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 80),
        ("Qwen/Qwen3-VL-8B-Instruct", 8.2),
        ("Qwen/Qwen3.5-27B", 27),
        ("Qwen/Qwen3.5-397B-A17B", 397),
        ("deepseek-ai/DeepSeek-V3", 671),
        ("google/gemma-3-12b-it", 12),  # the vision transformer, which is not counted, has 0.4
        ("google/gemma-4-12B-it", 12),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", 400),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 109),
        ("mistralai/Mixtral-8x7B-v0.1", 46.7),
        ("moonshotai/Kimi-K2.5", 1026),
        ("nvidia/Gemma-4-31B-IT-NVFP4", 31),
        ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", 120),
        ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 550),
        ("nvidia/Nemotron-H-56B-Base-8K", 56),
        ("zai-org/GLM-5.2", 744),
    ],
)
def test_the_weights_of_other_models_sum_up_to_the_published_number(
    model_id: str, billions: float, tmp_path: Path
) -> None:
    assert read(tmp_path, CONFIGS[model_id]).num_parameters / 1e9 == pytest.approx(billions, rel=0.025)


def test_layers_that_share_keys_and_values_may_have_a_network_twice_as_wide(tmp_path: Path) -> None:
    architecture = read(tmp_path, CONFIGS["google/gemma-4-E2B-it"])
    first, last = (dict((each.name, each) for each in architecture.layer_matrices(layer)) for layer in (0, 34))
    assert (last["mlp"].num_values, "k and v" in last) == (2 * first["mlp"].num_values, False)


def test_the_attention_of_qwen3_next_has_a_gate_that_its_config_does_not_name(tmp_path: Path) -> None:
    assert read(tmp_path, CONFIGS["Qwen/Qwen3-Next-80B-A3B-Instruct"]).has_output_gate


def test_the_vision_transformer_of_qwen2_5_vl_is_read(tmp_path: Path) -> None:
    expected = CATALOG.find("qwen2.5vl:7b").architecture
    assert expected.vision is not None
    config = {
        "architectures": [expected.class_name],
        "hidden_size": expected.hidden_size,
        "intermediate_size": expected.intermediate_size,
        "max_position_embeddings": expected.vision.max_positions,
        "num_attention_heads": expected.num_heads,
        "num_hidden_layers": expected.num_layers,
        "num_key_value_heads": expected.num_kv_heads,
        "sliding_window": 32768,
        "use_sliding_window": False,
        "vision_config": {
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "patch_size": 14,
            "spatial_merge_size": 2,
        },
        "vocab_size": expected.vocab_size,
    }
    assert read(tmp_path, config) == expected


@pytest.mark.parametrize(
    ("model_id", "changes", "message"),
    [
        (
            "Qwen/Qwen3-8B",
            {"architectures": ["MllamaForConditionalGeneration"]},
            "architectures=MllamaForCondit.*Conch",
        ),
        ("Qwen/Qwen3-8B", {"architectures": None}, "architectures=none: Conch does not read its sizes"),
        ("Qwen/Qwen3-8B", {"hidden_size": None}, "hidden_size=None: expected a whole number from 1"),
        ("Qwen/Qwen3-8B", {"num_hidden_layers": "36"}, "num_hidden_layers='36': expected a whole number"),
        ("Qwen/Qwen3-8B", {"num_key_value_heads": 5}, "num_heads: 32: must be a multiple of num_kv_heads"),
        ("openai/gpt-oss-20b", {"num_hidden_layers": 25}, "num_hidden_layers=25: 24 layers have a kind"),
        ("openai/gpt-oss-20b", {"layer_types": ["round"] * 24}, "layer_types: 'round': expected one of full_attention"),
        ("openai/gpt-oss-20b", {"sliding_window": None}, "sliding_window=None: expected a whole number"),
        ("openai/gpt-oss-20b", {"layer_types": []}, "num_hidden_layers=24: 0 layers have a kind"),
        ("Qwen/Qwen3-30B-A3B", {"mlp_only_layers": 3}, "mlp_only_layers=3: expected a list"),
        (
            "Qwen/Qwen3-30B-A3B",
            {"mlp_only_layers": [0] * 49},
            "mixture_of_experts.num_dense_layers: 49: must be at most",
        ),
        ("deepseek-ai/DeepSeek-V3", {"q_lora_rank": None}, "q_lora_rank=None: expected a whole number"),
    ],
)
def test_a_shape_that_cannot_be_read_is_refused(
    model_id: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=f"^config.json: {message}"):
        read(tmp_path, CONFIGS[model_id] | changes)
