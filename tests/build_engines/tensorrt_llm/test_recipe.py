"""The commands of every model, compared with the recorded contract."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from build_engines.catalog import Catalog
from build_engines.errors import BuildError, DoesNotFit
from build_engines.gpus import GPUS
from build_engines.model_entry import Precision
from build_engines.planner.plan import plan
from build_engines.tensorrt_llm.recipe import (
    PLACEHOLDERS,
    LoraLimits,
    Recipe,
    SourceFormat,
    Step,
    checkpoint_step,
    engine_step,
)
from model_repository.engine.tensorrt_llm.options import Backend

CLI = json.loads((Path(__file__).parents[2] / "data" / "tensorrt_llm_contract.json").read_text(encoding="utf-8"))["cli"]
CATALOG = Catalog(entry for entry in Catalog.load() if entry.presets)
COMPILED = [entry for entry in CATALOG if Backend.ENGINE in entry.backends]
LORA = LoraLimits(max_rank=16, modules=("attn_q", "attn_dense"))


def recipes() -> Iterator[Recipe]:
    """Yield every model on every GPU in every precision, if it fits."""
    for entry in COMPILED:
        for gpu in GPUS.values():
            for precision in entry.precisions:
                try:
                    yield Recipe(plan=plan(entry, gpu, precision=precision))
                except DoesNotFit:
                    continue


RECIPES = list(recipes())


def steps(recipe: Recipe) -> tuple[Step, Step]:
    return checkpoint_step(recipe, PLACEHOLDERS), engine_step(recipe, PLACEHOLDERS)


def recipe_of(name: str, gpu: str = "h100", precision: str | None = None, **changes: Any) -> Recipe:
    return Recipe(plan=plan(CATALOG.find(name), GPUS[gpu], precision=precision), **changes)


def check_recorded(step: Step) -> None:
    """Check every flag of a command, and every value."""
    recorded: dict[str, dict[str, Any]] = {}
    for flag, entry in CLI[step.program].items():
        recorded |= dict.fromkeys((flag, *entry.get("aliases", ())), entry | {"name": flag})
    words = list(step.command[step.command.index(next(word for word in step.command if word.startswith("--"))) :])
    given = set()
    while words:
        flag = words.pop(0)
        assert flag in recorded, f"{step.program} has no {flag}"
        entry = recorded[flag]
        given.add(entry["name"])
        assert not entry.get("uncertain"), flag
        assert not entry.get("deprecated"), flag
        values = []
        while words and not words[0].startswith("--"):
            values.append(words.pop(0))
        assert (len(values) == 0) == (entry["type"] == "flag"), f"{flag} {values}"
        assert len(values) <= 1 or entry["type"] == "list[str]", f"{flag} {values}"
        for value in values:
            assert "choices" not in entry or value in entry["choices"], f"{flag} {value}"
            assert entry["type"] != "int" or int(value) > 0, f"{flag} {value}"
    assert given >= {flag for flag, entry in CLI[step.program].items() if entry.get("required")}


def name_of(recipe: Recipe) -> str:
    return f"{recipe.plan.entry.short_name}-{recipe.plan.gpu.key}-{recipe.plan.precision}"


@pytest.mark.parametrize("recipe", RECIPES, ids=name_of)
def test_every_flag_and_value_is_recorded_and_each_rank_has_its_files(recipe: Recipe) -> None:
    for variant in (
        recipe,
        replace(recipe, has_context_logits=True, lora=LORA, num_workers=2, has_duplicated_kv_heads=True),
        replace(recipe, calibration_dataset="texts"),
    ):
        for step in steps(variant):
            check_recorded(step)
    converted, engine = steps(recipe)
    ranks = range(recipe.plan.parallelism.num_gpus)
    assert converted.files == ("config.json", *(f"rank{rank}.safetensors" for rank in ranks))
    assert engine.files == ("config.json", *(f"rank{rank}.engine" for rank in ranks))


def test_a_llama_is_converted_and_compiled() -> None:
    converted, engine = steps(recipe_of("llama3.1:405b"))
    assert converted.text == (
        "python3 TENSORRT_LLM/examples/models/core/llama/convert_checkpoint.py --model_dir CHECKPOINT "
        "--output_dir WORK/checkpoint --dtype bfloat16 --tp_size 8 --pp_size 2 --workers 8 --load_by_shard"
    )
    assert engine.text == (
        "trtllm-build --checkpoint_dir WORK/checkpoint --output_dir WORK/engine --max_batch_size 128 "
        "--max_input_len 131071 --max_seq_len 131072 --max_num_tokens 8192 --gemm_plugin auto --workers 8"
    )


def test_fp8_is_measured_on_sample_texts_and_uses_no_gemm_plugin() -> None:
    converted, engine = steps(recipe_of("qwen2.5:72b", precision="fp8", calibration_dataset="/texts"))
    assert converted.text == (
        "python3 TENSORRT_LLM/examples/quantization/quantize.py --model_dir CHECKPOINT --output_dir WORK/checkpoint "
        "--dtype bfloat16 --qformat fp8 --kv_cache_dtype fp8 --tp_size 2 --pp_size 1 --calib_dataset /texts "
        "--calib_size 512"
    )
    assert "--gemm_plugin" not in engine.command


def test_a_checkpoint_in_metas_fp8_is_only_converted() -> None:
    recipe = recipe_of("llama3.1:405b", precision="fp8", source_format=SourceFormat.FP8_ROWWISE)
    converted, engine = steps(recipe)
    assert converted.program == "examples/models/core/llama/convert_checkpoint.py"
    assert "--use_fp8_rowwise" not in converted.command
    assert recipe_of("llama3.1:8b", precision="fp8").kv_precision is Precision.FP8
    assert recipe_of("llama3.1:8b", precision="fp8", source_format=SourceFormat.FP8_ROWWISE).kv_precision == "bf16"
    assert "--gemm_plugin" not in engine.command


def test_the_converter_makes_fp8_where_no_gpus_hold_the_16_bit_model() -> None:
    recipe = recipe_of("llama3.1:405b", precision="fp8")
    converted, _ = steps(recipe)
    assert converted.program == "examples/models/core/llama/convert_checkpoint.py"
    assert "--use_fp8_rowwise" in converted.command
    assert not recipe.is_quantized


def test_a_conversion_needs_the_memory_of_the_ranks_that_it_converts_at_the_same_time() -> None:
    assert recipe_of("llama3.1:405b").ram_bytes == pytest.approx(1.2 * 812e9 / 2, rel=0.01)  # 8 of 16 ranks
    assert recipe_of("llama3.1:405b", num_workers=1).ram_bytes == pytest.approx(1.2 * 812e9 / 16, rel=0.01)
    for recipe in (recipe_of("gemma2:27b", num_workers=1), recipe_of("qwen2.5:72b", precision="fp8", num_workers=1)):
        assert recipe.ram_bytes == recipe.plan.build_ram_bytes


@pytest.mark.parametrize(("name", "precision"), [("qwen2.5:72b", "fp8"), ("llama3.1:8b", "bf16")])
def test_fp8_of_another_kind_is_refused(name: str, precision: str) -> None:
    with pytest.raises(BuildError, match="quant_method=fbgemm_fp8: goes with --precision fp8 and models of the llama"):
        recipe_of(name, precision=precision, source_format=SourceFormat.FP8_ROWWISE)


def test_gemma_has_tensor_parallelism_only() -> None:
    converted, engine = steps(recipe_of("gemma-2-27b-it"))
    assert converted.command[2:] == (
        *("--ckpt-type", "hf", "--model-dir", "CHECKPOINT", "--output-model-dir", "WORK/checkpoint"),
        *("--dtype", "bfloat16", "--world-size", "2"),
    )
    assert "4096" in engine.command


def test_adapters_and_prompt_log_probabilities_are_built_in() -> None:
    _, engine = steps(recipe_of("llama3.1:8b", lora=LORA, has_context_logits=True))
    assert "--lora_plugin auto --lora_target_modules attn_q attn_dense --max_lora_rank 16" in engine.text
    assert "--gather_context_logits" in engine.command
