"""docs/gpu.md equals the code: options and used names of TensorRT-LLM."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from build_engines.__main__ import _parser as build_parser
from build_engines.catalog import Catalog
from build_engines.gpus import GPUS
from build_engines.model_entry import Precision
from build_engines.planner.plan import plan
from build_engines.planner.report import plan_lines
from build_engines.tensorrt_llm.checks import IMAGE, TARGET_VERSION
from build_engines.tensorrt_llm.options import _DECIDED, CONTEXT_LOGITS
from build_engines.tensorrt_llm.recipe import PLACEHOLDERS, LoraLimits, Recipe, Step, checkpoint_step, engine_step
from frontend.__main__ import _BUILD_COMMANDS
from frontend.__main__ import _parser as frontend_parser
from model_repository.engine.tensorrt_llm.options import TensorRtLlmOptions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
RUNTIME = ROOT / "model_repository" / "engine" / "tensorrt_llm"
CONTRACT: dict[str, Any] = json.loads(
    (ROOT / "tests" / "data" / "tensorrt_llm_contract.json").read_text(encoding="utf-8")
)

# Where the record has the names of a row.
_CALLABLES = {
    "LLM": ("tensorrt_llm.llmapi.TrtLlmArgs.__init__", "tensorrt_llm.llmapi.TorchLlmArgs.__init__"),
    "generate_async": ("tensorrt_llm.LLM.generate_async",),
    "get_stats_async": ("tensorrt_llm.LLM.get_stats_async",),
    "shutdown": ("tensorrt_llm.LLM.shutdown",),
    "SamplingParams": ("tensorrt_llm.SamplingParams.__init__",),
    "KvCacheConfig": ("tensorrt_llm.llmapi.KvCacheConfig.__init__",),
    "SchedulerConfig": ("tensorrt_llm.llmapi.SchedulerConfig.__init__",),
    "GuidedDecodingParams": ("tensorrt_llm.llmapi.GuidedDecodingParams.__init__",),
    "LoRARequest": ("tensorrt_llm.executor.LoRARequest.__init__",),
    "LoraConfig": ("tensorrt_llm.lora_helper.LoraConfig.__init__",),
    "logits processor's call": ("tensorrt_llm.sampling_params.LogitsProcessor.__call__",),
}


def table(heading: str) -> dict[str, list[str]]:
    """Return the rows of the table with this first heading, by their first cell."""
    lines = PAGE.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    rows = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[first.strip("`")] = cells
    return rows


def names(cell: str) -> set[str]:
    """Return the names between backticks."""
    return set(re.findall(r"`([^`]+)`", cell))


def recorded(row: str) -> set[str]:
    """Return the names that are recorded of a row without a doubt."""
    if row == "CapacitySchedulerPolicy":
        return set(CONTRACT["enums"][row])
    if row == "environment":
        return set(CONTRACT["env"])
    if row in CONTRACT["classes"]:
        described = CONTRACT["classes"][row]
        methods = {text.partition("(")[0] for text in described.get("protocols", ())}
        return methods | {each["name"] for each in described["attributes"] if not each.get("uncertain")}
    found = [CONTRACT["callables"][name] for name in _CALLABLES[row]]
    return {each["name"] for call in found for each in call["params"]}


def steps() -> Iterator[Step]:
    """Yield both commands of every model, precision and GPU, with every switch that changes their flags."""
    for entry in Catalog.load():
        for key, by_precision in entry.presets.items():
            for precision in by_precision:
                texts = "texts" if precision is Precision.FP8 else None
                recipe = Recipe(
                    plan=plan(entry, GPUS[key], precision=precision),
                    has_context_logits=True,
                    has_duplicated_kv_heads=True,
                    lora=LoraLimits(max_rank=8, modules=("attn_q",)),
                    calibration_dataset=texts,
                )
                yield from (checkpoint_step(recipe, PLACEHOLDERS), engine_step(recipe, PLACEHOLDERS))


def commands(page: str) -> Iterator[tuple[str, list[str]]]:
    """Yield program and arguments of every command of ours in a page's blocks of shell."""
    for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.search(r"(?:^|[ /])conch (\w+ .*)", line)
            if command is not None:
                words = shlex.split(command[1].partition(" && ")[0], comments=True)
                yield "build_engines" if words[0] in _BUILD_COMMANDS else "frontend", words


def imported() -> set[str]:
    """Return the names that the runtime imports from TensorRT-LLM."""
    return {
        alias.name
        for path in RUNTIME.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tensorrt_llm")
        for alias in node.names
    }


def keywords_of(*files: str) -> set[str]:
    """Return the keys of dictionaries, which in these files are keywords of TensorRT-LLM's."""
    found: set[str] = set()
    for name in files:
        for node in ast.walk(ast.parse((RUNTIME / name).read_text(encoding="utf-8"))):
            keys = node.keys if isinstance(node, ast.Dict) else []
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                keys = [node.slice]
            found |= {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
    return found


def test_the_page_begins_with_its_missing_gpu_runs() -> None:
    assert PAGE.split("\n\n")[1].startswith("**None of this has run on a GPU yet.**")


def test_every_option_of_the_runtime_is_there_with_its_default() -> None:
    rows = table("option")
    defaults = {field.name: field.default for field in dataclasses.fields(TensorRtLlmOptions)}
    assert rows.keys() == defaults.keys()
    for name, (default, *_) in rows.items():
        if name in _DECIDED or name == CONTEXT_LOGITS:
            assert default == ""
        else:
            assert default == f"`{str(defaults[name]).lower()}`"


def test_every_flag_that_a_build_uses_is_there_and_recorded() -> None:
    used: dict[str, set[str]] = {}
    for step in steps():
        used.setdefault(step.program, set()).update(word for word in step.command if word.startswith("--"))
    rows = table("program")
    assert {program: names(cells[0]) for program, cells in rows.items()} == used
    for program, (cell, status) in rows.items():
        known = {flag for flag, entry in CONTRACT["cli"][program].items() if not entry.get("uncertain")}
        assert status == "recorded" and names(cell) <= known


def test_every_name_that_the_runtime_uses_is_there() -> None:
    rows = table("of Python")
    assert imported() <= rows.keys()
    named = set().union(*(names(cells[0]) for cells in rows.values()))
    assert keywords_of("llm.py", "sampling.py") <= named
    called = {row: names(cells[0]) for row, cells in rows.items()}
    tree = ast.parse((RUNTIME / "llm.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in imported():
            assert {keyword.arg for keyword in node.keywords if keyword.arg} <= called[node.func.id]


@pytest.mark.parametrize("row", [row for row, (_, status) in table("of Python").items() if status[:3] == "rec"])
def test_recorded_names_of_the_page_are_recorded(row: str) -> None:
    cell, _ = table("of Python")[row]
    if row == "RequestError":
        assert row in CONTRACT["exports"]["tensorrt_llm.llmapi"]
    else:
        assert names(cell) <= recorded(row)


def test_the_commands_of_the_pages_are_ones_that_the_programs_take() -> None:
    pages = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/models.md")]
    found = list(commands("\n".join([PAGE, *pages])))
    assert sum(program == "build_engines" for program, _ in found) > 10
    for program, words in found:
        parser = {"build_engines": build_parser, "frontend": frontend_parser}[program]()
        parsed = parser.parse_args(words)
        if words[0] == "plan" or getattr(parsed, "runtime", "") == "tensorrt_llm":
            Catalog.load().find(words[1])


def test_the_page_names_the_image_and_the_size_of_the_largest_model() -> None:
    assert IMAGE in PAGE and f"v{TARGET_VERSION}" in PAGE
    largest = plan(Catalog.load().find("llama3.1:405b"), GPUS["h100"], num_gpus=16, num_nodes=2, max_seq_len=16384)
    assert f"{largest.memory.weights_bytes / 1e9:.1f} GB of weights on each of 16 GPUs" in PAGE
    assert f"with {largest.build_disk_bytes / 1e12:.1f} TB free" in " ".join(PAGE.split())
    assert f"needs {Recipe(plan=largest).ram_bytes / 1e12:.1f} TB of RAM" in " ".join(PAGE.split())


def test_the_page_on_models_shows_a_printed_plan() -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    shown = page.partition("```text\n")[2].partition("\n```")[0].splitlines()
    entry = Catalog.load().find("llama3.1:70b")
    printed = list(plan_lines(plan(entry, GPUS["h100"], precision=Precision.FP8, max_seq_len=32768), 100))
    assert len(shown) > 5
    assert [line for line in shown if line not in (*printed, "...")] == []
