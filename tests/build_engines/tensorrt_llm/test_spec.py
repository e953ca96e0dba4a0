"""Artifacts for TensorRT-LLM, with a fake instead of the tools."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from build_engines import artifact
from build_engines.build import build
from build_engines.errors import BuildError
from build_engines.gpus import GPUS
from build_engines.lock import lock_path, locked
from build_engines.model_entry import ModelEntry
from build_engines.planner.plan import plan
from build_engines.planner.sizing import Plan
from build_engines.serving import Serving
from build_engines.tensorrt_llm.recipe import LoraLimits, Recipe, SourceFormat
from build_engines.tensorrt_llm.source import Source
from build_engines.tensorrt_llm.spec import TensorRtLlmSpec, Tools
from build_engines.tensorrt_llm.tool import ToolRun
from model_repository.byte_table import load_byte_table
from model_repository.engine.tensorrt_llm.options import Backend, TensorRtLlmOptions
from tests.build_engines.tensorrt_llm.test_checks import MACHINE
from tests.build_engines.tensorrt_llm.tiny_model import tiny_entry, write_tiny_checkpoint
from tests.build_engines.tiny_adapter import random_pairs, tensors_of, write_adapter
from tests.build_engines.tiny_checkpoint import random_weights


@dataclass
class FakeTools:
    """Writes the expected files of the steps."""

    ran: list[str] = field(default_factory=list)

    def __call__(self, run: ToolRun) -> None:
        self.ran.append(run.name)
        suffix = "safetensors" if run.name == "checkpoint" else "engine"
        for name in ("config.json", f"rank0.{suffix}", f"rank1.{suffix}"):
            (run.output / name).write_text(run.name)


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    """Everything that a build needs of the machine."""
    examples = tmp_path / "examples"
    for program in ("models/core/llama/convert_checkpoint.py", "quantization/quantize.py"):
        (examples / "examples" / program).parent.mkdir(parents=True)
        (examples / "examples" / program).touch()
    return Tools(
        machine=replace(MACHINE, gpu_names=MACHINE.gpu_names * 2),
        work_dir=tmp_path / "work",
        examples=examples,
        run=FakeTools(),
    )


@pytest.fixture
def spec(tools: Tools, tmp_path: Path) -> TensorRtLlmSpec:
    """A tiny Llama for two GPUs."""
    entry = tiny_entry("llama", tmp_path)
    return TensorRtLlmSpec(
        recipe=Recipe(plan=planned(entry)),
        source=Source.load(write_tiny_checkpoint(tmp_path / "checkpoint"), entry),
        revision=None,
        backend=Backend.ENGINE,
        options={},
        adapters={},
        tool_call_format="plain",
        serving=Serving(),
        tools=tools,
    )


def planned(entry: ModelEntry, precision: str = "bf16") -> Plan:
    return plan(entry, GPUS["b200" if precision == "nvfp4" else "h100"], num_gpus=2, precision=precision)


def key(spec: TensorRtLlmSpec, folder: Path) -> str:
    return artifact.verify(build(spec, folder / "artifacts")).key


def with_plan(spec: TensorRtLlmSpec, **changes: Any) -> TensorRtLlmSpec:
    return replace(spec, recipe=replace(spec.recipe, plan=replace(spec.plan, **changes)))


def test_the_manifest_records_the_build(spec: TensorRtLlmSpec, tmp_path: Path) -> None:
    folder = build(replace(spec, revision="c" * 40), tmp_path / "artifacts")
    manifest = artifact.verify(folder)
    assert manifest.options == {
        "backend": "engine",
        "tp_size": "2",
        "pp_size": "1",
        "max_batch_size": "128",
        "max_num_tokens": "8192",
        "prompt_logprobs": "false",
        "trust_remote_code": "false",
    }
    TensorRtLlmOptions.of(manifest.options)
    assert (manifest.build["revision"], manifest.build["max_seq_len"], manifest.build["gpu"]) == (
        "c" * 40,
        1024,
        "H100",
    )
    assert len(manifest.build["commands"]) == 2
    assert set(manifest.files) == {
        *("engine/config.json", "engine/rank0.engine", "engine/rank1.engine"),
        *("byte_table.npz", "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json"),
    }
    assert len(load_byte_table(folder / "byte_table.npz")) == 288


def test_cleaning_up_does_not_wait(spec: TensorRtLlmSpec, tmp_path: Path) -> None:
    """The next build of the model took the lock as soon as the engine was there, and kept it for hours."""
    folder = tmp_path / "work" / "tiny--llama"
    folder.mkdir(parents=True)
    with locked(lock_path(folder), "builds with other limits"):
        spec.clean_up({})


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: replace(spec, revision="d" * 40),
        lambda spec: replace(
            spec, tools=replace(spec.tools, machine=replace(spec.tools.machine, tensorrt_llm_version="1.2.1+x"))
        ),
        lambda spec: replace(
            spec, recipe=Recipe(plan=plan(spec.plan.entry, GPUS["h100"], num_gpus=2, precision="fp8"))
        ),
        lambda spec: with_plan(spec, max_batch_size=64),
        lambda spec: with_plan(spec, max_num_tokens=64),
        lambda spec: with_plan(spec, max_seq_len=64),
        lambda spec: with_plan(spec, entry=replace(spec.plan.entry, eos_token_ids=(260, 261))),
        lambda spec: replace(spec, recipe=replace(spec.recipe, has_context_logits=True)),
        lambda spec: replace(spec, recipe=replace(spec.recipe, lora=LoraLimits(max_rank=8, modules=("attn_q",)))),
        lambda spec: replace(spec, options={"block_reuse": "false"}),
        lambda spec: replace(spec, tool_call_format="hermes"),
        lambda spec: replace(spec, backend=Backend.PYTORCH),
    ],
)
def test_changes_of_the_engine_change_the_key(change: Any, spec: TensorRtLlmSpec, tmp_path: Path) -> None:
    assert key(change(spec), tmp_path) != key(spec, tmp_path)


def test_the_number_of_workers_is_not_in_the_key(spec: TensorRtLlmSpec, tmp_path: Path) -> None:
    other = replace(spec, recipe=replace(spec.recipe, num_workers=1), serving=Serving.of(["other"], {}))
    assert key(other, tmp_path) == key(spec, tmp_path)
    assert isinstance(spec.tools.run, FakeTools)
    assert spec.tools.run.ran == ["checkpoint", "engine"]


def test_a_step_whose_file_has_changed_is_done_again(spec: TensorRtLlmSpec, tmp_path: Path) -> None:
    kept = replace(spec, tools=replace(spec.tools, keeps_work=True))
    build(kept, tmp_path / "artifacts")
    build(with_plan(kept, max_batch_size=4), tmp_path / "artifacts")
    assert isinstance(spec.tools.run, FakeTools)
    assert spec.tools.run.ran == ["checkpoint", "engine", "engine"]
    (converted,) = (tmp_path / "work" / "tiny--llama").glob("checkpoint-*")
    (converted / "rank0.safetensors").write_text("cut")
    build(with_plan(kept, max_batch_size=2), tmp_path / "artifacts")
    assert spec.tools.run.ran == ["checkpoint", "engine", "engine", "checkpoint", "engine"]
    assert (converted / "rank0.safetensors").read_text() == "checkpoint"


def test_a_template_that_we_ship_is_in_the_artifact(spec: TensorRtLlmSpec, tmp_path: Path) -> None:
    entry = dataclasses.replace(spec.plan.entry, chat_template="alpaca")
    (spec.source.folder / "tokenizer_config.json").write_text("{}")
    folder = build(with_plan(spec, entry=entry), tmp_path / "artifacts")
    assert "### Instruction:" in (folder / "tokenizer" / "chat_template.jinja").read_text()


def test_generation_config_has_end_tokens_and_sampling_defaults(spec: TensorRtLlmSpec, tmp_path: Path) -> None:
    generation = {"eos_token_id": [7, 261], "temperature": 0.6}
    (spec.source.folder / "generation_config.json").write_text(json.dumps(generation))
    source = Source.load(spec.source.folder, spec.plan.entry)
    manifest = artifact.verify(build(replace(spec, source=source), tmp_path / "artifacts"))
    assert (manifest.eos_token_ids, manifest.sampling) == (frozenset({261, 7}), {"temperature": 0.6})


def test_other_adapters_of_the_same_shape_need_no_other_engine(spec: TensorRtLlmSpec, tmp_path: Path) -> None:
    recipe = replace(spec.recipe, lora=LoraLimits(max_rank=4, modules=("attn_q",)))
    kept = replace(spec, recipe=recipe, tools=replace(spec.tools, keeps_work=True))
    folders: list[Path] = []
    for name in ("one", "two"):
        pairs = random_pairs(random_weights(), ("q_proj",))
        adapter = write_adapter(tmp_path / name, tensors_of(pairs), lora_alpha=len(folders) + 1)
        folders.append(build(replace(kept, adapters={"formal": adapter}), tmp_path / "artifacts"))
    assert folders[0] != folders[1]
    assert isinstance(spec.tools.run, FakeTools)
    assert spec.tools.run.ran == ["checkpoint", "engine"]
    assert artifact.verify(folders[0]).options["lora_modules"] == "attn_q"


@pytest.mark.parametrize(
    ("backend", "precision", "taken"),
    [
        (Backend.ENGINE, "bf16", {SourceFormat.SIXTEEN_BIT}),
        (Backend.ENGINE, "fp8", {SourceFormat.SIXTEEN_BIT, SourceFormat.FP8_ROWWISE}),
        (Backend.PYTORCH, "bf16", {SourceFormat.SIXTEEN_BIT}),
        (Backend.PYTORCH, "fp8", {SourceFormat.MODELOPT_FP8, SourceFormat.FP8_BLOCKS}),
        (Backend.PYTORCH, "nvfp4", {SourceFormat.MODELOPT_NVFP4}),
    ],
)
def test_a_backend_takes_only_its_formats(
    backend: Backend, precision: str, taken: set[SourceFormat], spec: TensorRtLlmSpec
) -> None:
    for source_format in SourceFormat:
        refusal = pytest.raises(BuildError, match=r"expected a checkpoint in|goes with --precision fp8")
        with contextlib.nullcontext() if source_format in taken else refusal:
            recipe = Recipe(plan=planned(spec.plan.entry, precision), source_format=source_format)
            replace(spec, recipe=recipe, backend=backend)
