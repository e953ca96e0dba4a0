"""The catalog: equal to the recorded models, and with clear errors for a broken rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from build_engines.architecture import LayerKind
from build_engines.catalog import Catalog
from build_engines.errors import CatalogError
from build_engines.model_entry import ModelEntry, Precision, chat_template_text
from build_engines.parallelism import Parallelism
from build_engines.planner.memory import cache_terms
from model_repository.tool_formats import TOOL_FORMATS, detect_tool_format

CATALOG = Catalog.load()
CONTRACT = json.loads((Path(__file__).parents[1] / "data" / "tensorrt_llm_contract.json").read_text(encoding="utf-8"))
RECORDED = {model["hf_id"]: model for model in CONTRACT["models"]}


def entry_of(model_id: str) -> ModelEntry:
    return CATALOG.find(model_id)


def test_the_older_models_are_the_recorded_ones() -> None:
    assert [entry.model_id for entry in CATALOG if entry.is_older] == list(RECORDED)
    assert (len(RECORDED), len(CATALOG)) == (15, 43)


@pytest.mark.parametrize("model_id", RECORDED)
def test_numbers_are_the_recorded_ones(model_id: str) -> None:
    recorded, entry = RECORDED[model_id], entry_of(model_id)
    architecture = entry.architecture
    assert architecture.class_name == recorded["architecture"]
    assert architecture.num_layers == recorded["layers"]
    assert architecture.hidden_size == recorded["hidden"]
    assert architecture.num_heads == recorded["heads"]
    assert architecture.num_kv_heads == recorded["kv_heads"]
    assert recorded["head_dim"] in (None, architecture.head_size)
    assert architecture.intermediate_size == recorded["intermediate"]
    assert architecture.vocab_size == recorded["vocab"]
    assert architecture.has_tied_embeddings == recorded.get("tied_embeddings", False)
    assert architecture.has_qkv_bias == recorded.get("qkv_bias", False)
    assert architecture.num_parameters == recorded["parameters"]
    assert 2 * architecture.num_parameters == recorded["weight_bytes_bf16"]
    kept = {size: cache_terms(architecture, Parallelism(), size) for size in (2, 1)}
    assert kept[2][LayerKind.FULL].num_bytes == recorded["kv_bytes_per_token_16bit"]
    assert kept[1][LayerKind.FULL].num_bytes == recorded["kv_bytes_per_token_fp8"]
    assert all(len(terms) == 1 for terms in kept.values())


def test_tool_call_formats_are_those_of_the_shipped_templates() -> None:
    ours = [(entry, chat_template_text(entry)) for entry in CATALOG]
    assert all(detect_tool_format(template) == entry.tool_call_format for entry, template in ours if template)


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "model_id"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B-Instruct"),
        ("llama3.1:8b", "meta-llama/Meta-Llama-3.1-8B-Instruct"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B-Instruct"),
        ("gemma-2-9b-it", "google/gemma-2-9b-it"),
        ("405b", "meta-llama/Meta-Llama-3.1-405B-Instruct"),
        ("llama-3.1-8b", "meta-llama/Meta-Llama-3.1-8B-Instruct"),
        ("nvidiaLlama-3.1-Nemotron-70B-Instruct", "nvidia/Llama-3.1-Nemotron-70B-Instruct-HF"),
        ("qwen3:8b", "Qwen/Qwen3-8B"),
        ("gpt-oss:20b", "openai/gpt-oss-20b"),
        ("gemma4:e4b", "google/gemma-4-E4B-it"),
        ("llama3.3:70b", "meta-llama/Llama-3.3-70B-Instruct"),
        ("smollm2:135m", "HuggingFaceTB/SmolLM2-135M-Instruct"),
    ],
)
def test_a_model_is_found_by_its_names(name: str, model_id: str) -> None:
    assert CATALOG.find(name).model_id == model_id


def test_a_part_of_several_ids_is_refused_with_all_of_them() -> None:
    with pytest.raises(CatalogError, match=r"^gemma-2: say which: gemma2:27b or gemma2:9b$"):
        CATALOG.find("gemma-2")


def test_a_part_of_an_id_with_its_owner_is_another_model() -> None:
    assert CATALOG.find("Qwen2.5-7B").model_id == "Qwen/Qwen2.5-7B-Instruct"
    with pytest.raises(CatalogError, match=r"not in the catalog; did you mean .*Qwen/Qwen2\.5-7B-Instruct"):
        CATALOG.find("Qwen/Qwen2.5-7B")


def test_an_unknown_name_lists_near_ones() -> None:
    with pytest.raises(CatalogError, match=r"^qwen2\.5:8b: not in the catalog; did you mean qwen2\.5:7b or "):
        CATALOG.find("qwen2.5:8b")
    with pytest.raises(CatalogError, match="`conch list --all` shows its models"):
        CATALOG.find("0")


# --- files of the user ------------------------------------------------------------------------------------------------

ARCHITECTURE = {
    "class_name": "LlamaForCausalLM",
    "num_layers": 4,
    "hidden_size": 64,
    "num_heads": 8,
    "num_kv_heads": 2,
    "head_size": 8,
    "intermediate_size": 128,
    "vocab_size": 1000,
}
MODEL: dict[str, Any] = {
    "aliases": ["small"],
    "family": "llama",
    "architecture": ARCHITECTURE,
    "context_window": 2048,
    "tokenizer_kind": "byte-level BPE",
    "eos_token_ids": [2],
    "tool_call_format": "plain",
    "license": "ours",
    "precisions": ["bf16", "fp8"],
    "presets": {"h100": {"bf16": {"tp_size": 2}}},
}


def written(tmp_path: Path, model: object, model_id: str = "me/my-model") -> Path:
    path = tmp_path / "models.yaml"
    path.write_text(yaml.safe_dump({"models": {model_id: model}}, sort_keys=False))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(CatalogError) as caught:
        Catalog.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


def test_a_file_of_the_user_extends_the_catalog(tmp_path: Path) -> None:
    catalog = Catalog.load(written(tmp_path, MODEL))
    assert len(catalog) == len(CATALOG) + 1
    entry = catalog.find("my-model")
    assert entry == catalog.find("small")
    assert entry.presets["h100"][Precision.BF16] == Parallelism(tp_size=2)
    assert entry.chat_template == "checkpoint"
    assert chat_template_text(entry) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": "red"}, "colour: 'red': unknown key"),
        ({"context_window": -1}, "context_window: -1: Input should be greater than 0"),
        (
            {"architecture": ARCHITECTURE | {"num_kv_heads": 3}},
            "architecture.num_heads: 8: must be a multiple of num_kv_heads (3)",
        ),
        (
            {"architecture": ARCHITECTURE | {"layers": 3}},
            "architecture.layers: 3: unknown key",
        ),
        ({"max_seq_len": 4096}, "max_seq_len: 4096: must be at most 2048"),
        ({"max_seq_len": 1024, "default_max_seq_len": 2048}, "default_max_seq_len: 2048: must be at most 1024"),
        ({"eos_token_ids": [1000]}, "bos_token_id, eos_token_ids: 1000: must be below vocab_size (1000)"),
        ({"tool_call_format": "xml"}, f"tool_call_format: xml: expected one of {', '.join(TOOL_FORMATS)}"),
        ({"chat_template": "vicuna"}, "chat_template: vicuna: expected one of checkpoint, alpaca, deepseek"),
        ({"precisions": ["bf16", "bf16"]}, "precisions: bf16, bf16: each may be named once"),
        (
            {"ready_checkpoints": {"bf16": "me/other"}},
            "ready_checkpoints.bf16: expected a precision of the model below 16 bits",
        ),
        ({"ready_checkpoints": {"fp8": "me"}}, "ready_checkpoints.fp8: 'me': String should match pattern"),
        (
            {"runtime_options": {"block_reuse": "no"}},
            "runtime_options: option block_reuse=no: must be true or false",
        ),
        ({"presets": {"b300": {}}}, "presets.b300: expected one of h100, h200, b200, a100, l40s"),
        ({"presets": {"h100": {"f16": {}}}}, "presets.h100.f16: not among the model's precisions"),
        ({"presets": {"a100": {"fp8": {}}}}, "presets.a100.fp8: A100 has no FP8"),
        (
            {"precisions": ["bf16", "nvfp4"], "presets": {"h200": {"nvfp4": {}}}},
            "presets.h200.nvfp4: H200 has no NVFP4",
        ),
        ({"presets": {"h100": {"bf16": {"tp_size": 16}}}}, "presets.h100.bf16: 16 GPUs in a node, which holds 8"),
        ({"presets": {"h100": {"bf16": {"tp_size": 3}}}}, "presets.h100.bf16: tp_size 3 must divide the 8 heads"),
        (
            {"presets": {"h100": {"bf16": {"pp_size": 2}}}, "has_pipeline_parallelism": False},
            "presets.h100.bf16: the model is built without pipeline parallelism",
        ),
        (
            {"presets": {"h100": {"bf16": {"tp_size": 2, "num_nodes": 4}}}},
            "presets.h100.bf16.num_nodes: 4: must divide the number of GPUs (2)",
        ),
        (
            {"presets": {"l40s": {"bf16": {}}}, "gpu_architectures": ["sm90"]},
            "presets.l40s.bf16: L40S is sm89, which is not among gpu_architectures",
        ),
        (
            {"fill_in_middle": {"prefix": "<a>", "suffix": "<b>", "middle": "<c>"}},
            "fill_in_middle.prefix: <a>: the tokenizer stage knows these families: ",
        ),
        ({"aliases": [" x"]}, "model_id, aliases, sampling: alias ' x': printable characters, no space at either end"),
        ({"sampling": {"top_k": 0.5}}, "model_id, aliases, sampling: default top_k=0.5: must be a whole number"),
        ({"gguf": "me/my-model-GGUF"}, "gguf: 'me/my-model-GGUF': String should match pattern"),
        ({"reasoning_format": "loud"}, "reasoning_format: loud: expected one of think, "),
        ({"eos_token_ids": []}, "family: llama: needs tokenizer_kind, eos_token_ids and tool_call_format"),
        (
            {"architecture": ARCHITECTURE | {"layer_pattern": "SF"}},
            "architecture.layer_pattern: SF: S goes with sliding_window",
        ),
        (
            {"architecture": ARCHITECTURE | {"sliding_window": 128}},
            "architecture.layer_pattern: F: S goes with sliding_window",
        ),
        ({"architecture": ARCHITECTURE | {"layer_pattern": "RX"}}, "architecture.layer_pattern: 'RX': String should"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else None,
)
def test_a_broken_rule_names_file_key_value_and_rule(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    model = {key: value for key, value in (MODEL | changes).items() if value is not ...}
    assert refusal(written(tmp_path, model)).startswith(f"models.me/my-model.{message}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: [", "not YAML: "),
        ("- a", "expected one key, `models`, an object with an entry for each model id"),
        ("models: {}\nmodel: {}", "expected one key, `models`, an object with an entry for each model id"),
        ("models: {a: 1}", "models.a: expected a text as the id, and an object without model_id"),
        ("models: {1: {}}", "models.1: expected a text as the id, and an object without model_id"),
        ("models:\n  a: {license: b}\n  a: {license: c}", "not YAML: a: given twice"),
        ("models:\n  a: {license: b, license: c}", "not YAML: license: given twice"),
        ("models:\n  ? [a, b]\n  : {license: b}", "not YAML: a key that is no text"),
    ],
)
def test_a_malformed_catalog_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(text)
    assert refusal(path).startswith(message)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.yaml") == "No such file or directory"


@pytest.mark.parametrize(
    ("model_id", "aliases", "message"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", [], "Qwen/Qwen2.5-7B-Instruct is a name of Qwen/Qwen2.5-7B-Instruct already"),
        ("me/a", ["llama3.1:8B"], "me/a: llama3.1:8B is a name of meta-llama/Meta-Llama-3.1-8B-Instruct already"),
    ],
)
def test_a_used_name_is_refused(tmp_path: Path, model_id: str, aliases: list[str], message: str) -> None:
    with pytest.raises(CatalogError, match=message):
        Catalog.load(written(tmp_path, MODEL | {"aliases": aliases}, model_id))
