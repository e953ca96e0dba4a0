"""Checkpoints before they are converted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from build_engines.errors import BuildError
from build_engines.tensorrt_llm.recipe import SourceFormat
from build_engines.tensorrt_llm.source import MODELOPT_FILE, Source
from tests.build_engines.tensorrt_llm.tiny_model import tiny_entry, write_tiny_checkpoint
from tests.build_engines.tiny_embedders import write_embedder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint in two files."""
    return write_tiny_checkpoint(tmp_path / "checkpoint")


def edit(folder: Path, name: str = "config.json", **changes: Any) -> None:
    (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | changes))


def test_a_complete_checkpoint_is_accepted(folder: Path, tmp_path: Path) -> None:
    (folder / "README.md").touch()
    (folder / "modeling.py").touch()
    source = Source.load(folder, tiny_entry("llama", tmp_path))
    assert (source.format, source.has_duplicated_kv_heads) == (SourceFormat.SIXTEEN_BIT, False)
    assert set(source.files()) == {
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "modeling.py",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_a_checkpoint_in_one_file_is_accepted(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "checkpoint", num_shards=1)
    assert "model.safetensors" in Source.load(folder, tiny_entry("llama", tmp_path)).files()


def test_a_model_that_embeds_is_refused(tmp_path: Path) -> None:
    folder = write_embedder(tmp_path / "checkpoint", "qwen3")
    with pytest.raises(BuildError, match="a model that embeds: the runtime llama_cpp serves it"):
        Source.load(folder, tiny_entry("llama", tmp_path))


@pytest.mark.parametrize("size_bytes", [0, 5, 8, 100])
def test_a_file_that_is_cut_short_is_named(size_bytes: int, folder: Path, tmp_path: Path) -> None:
    os.truncate(folder / "model-00001-of-00002.safetensors", size_bytes)
    with pytest.raises(BuildError, match=r"model-00001-of-00002\.safetensors: cut short, or no safetensors file"):
        Source.load(folder, tiny_entry("llama", tmp_path))


def test_a_tensor_that_contradicts_the_index_is_named(folder: Path, tmp_path: Path) -> None:
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    name = "model-00002-of-00002.safetensors"
    edit(folder, "model.safetensors.index.json", weight_map=index | {"lm_head.bias": name})
    with pytest.raises(BuildError, match=rf"{name}: tensor lm_head\.bias is missing, which model\.safetensors\.index"):
        Source.load(folder, tiny_entry("llama", tmp_path))


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "model.safetensors.index.json"])
def test_a_missing_file_is_named(name: str, folder: Path, tmp_path: Path) -> None:
    (folder / name).unlink()
    with pytest.raises(BuildError, match=name.replace(".", r"\.")):
        Source.load(folder, tiny_entry("llama", tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["Qwen2ForCausalLM"]}, "architectures=Qwen2ForCausalLM: tiny/llama has LlamaForCausalLM"),
        ({"num_hidden_layers": 3}, "num_hidden_layers=3: tiny/llama has 2"),
        ({"vocab_size": 300}, "vocab_size=300: tiny/llama has 288"),
        ({"num_key_value_heads": 1}, "num_key_value_heads=1: tiny/llama has 2"),
        ({"num_key_value_heads": None}, "num_key_value_heads=4: tiny/llama has 2"),
    ],
)
def test_another_models_checkpoint_is_refused(
    changes: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    edit(folder, **changes)
    with pytest.raises(BuildError, match=message):
        Source.load(folder, tiny_entry("llama", tmp_path))


def test_key_value_heads_that_are_there_twice_are_seen(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "checkpoint", num_attention_heads=8, num_key_value_heads=4)
    entry = tiny_entry("llama", tmp_path, num_heads=8)
    assert Source.load(folder, entry).has_duplicated_kv_heads


def test_metas_fp8_is_recognized_and_other_quantizations_are_refused(folder: Path, tmp_path: Path) -> None:
    entry = tiny_entry("llama", tmp_path)
    edit(folder, quantization_config={"quant_method": "fbgemm_fp8"})
    assert Source.load(folder, entry).format is SourceFormat.FP8_ROWWISE
    edit(folder, quantization_config=None)
    assert Source.load(folder, entry).format is SourceFormat.SIXTEEN_BIT
    edit(folder, quantization_config="awq")
    with pytest.raises(BuildError, match="quant_method=awq: expected"):
        Source.load(folder, entry)
    edit(folder, quantization_config={"quant_method": "gptq"})
    with pytest.raises(BuildError, match="quant_method=gptq: expected the 16-bit checkpoint, or one in fbgemm_fp8"):
        Source.load(folder, entry)


def test_fp8_with_scales_of_blocks_and_mxfp4_are_recognized(folder: Path, tmp_path: Path) -> None:
    entry = tiny_entry("llama", tmp_path)
    edit(folder, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert Source.load(folder, entry).format is SourceFormat.FP8_BLOCKS
    edit(folder, quantization_config={"quant_method": "mxfp4"})
    assert Source.load(folder, entry).format is SourceFormat.MXFP4
    edit(folder, quantization_config={"quant_method": "fp8", "weight_block_size": None})
    with pytest.raises(
        BuildError, match=r"quant_method=fp8: expected .* fp8 with a scale for each block \(\[128, 128\]\)"
    ):
        Source.load(folder, entry)


def test_modelopts_fp8_and_nvfp4_are_recognized_and_its_other_formats_are_refused(folder: Path, tmp_path: Path) -> None:
    entry = tiny_entry("llama", tmp_path)
    edit(folder, quantization_config={"quant_method": "modelopt"})
    (folder / MODELOPT_FILE).write_text('{"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}')
    source = Source.load(folder, entry)
    assert source.format is SourceFormat.MODELOPT_FP8
    assert MODELOPT_FILE in source.files()
    (folder / MODELOPT_FILE).write_text('{"quantization": {"quant_algo": "NVFP4", "group_size": 16}}')
    assert Source.load(folder, entry).format is SourceFormat.MODELOPT_NVFP4
    (folder / MODELOPT_FILE).write_text('{"quantization": {"quant_algo": "W4A8_AWQ"}}')
    with pytest.raises(BuildError, match=r"hf_quant_config\.json: quant_algo=W4A8_AWQ: expected FP8 or NVFP4"):
        Source.load(folder, entry)


def test_modelopts_format_is_read_in_config_json_where_its_own_file_is_missing(folder: Path, tmp_path: Path) -> None:
    """Newer exports have the algorithm there alone, and were refused."""
    entry = tiny_entry("llama", tmp_path)
    edit(folder, quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]})
    assert Source.load(folder, entry).format is SourceFormat.MODELOPT_NVFP4
    edit(folder, quantization_config={"quant_method": "modelopt"})
    with pytest.raises(BuildError, match=r"config\.json: quant_algo=None: expected FP8 or NVFP4"):
        Source.load(folder, entry)
