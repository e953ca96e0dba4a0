"""The run on a graphics card, without one: on the cores, on Mesa's software device, and with doubles of compilers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import cyllama
import pytest

from build_engines.checkpoint import Checkpoint
from build_engines.llama_cpp.gguf_file import write_gguf
from build_engines.model_source import DEMO
from tests.workshop.cards import build as cards_build
from tests.workshop.cards import steps
from tests.workshop.cards.build import LLAMA_CPP, ROOT, Programs, find
from tests.workshop.cards.steps import STEPS, Run
from tests.workshop.gpu_acceptance.report import LeftOut, Step, UnmetNeeds

# With a KV cache in f16, Mesa's device ends the process (Mesa 22.3.6: a step of one slot, then one of two).
TRIAL = ("--prompts", "4", "--tokens", "6", "--precision", "f32")
NAMES = [step.name for step in STEPS]
_BENCH = """#!/bin/sh
echo '[{"n_prompt": 128, "n_gen": 0, "avg_ts": 900.5}, {"n_prompt": 0, "n_gen": 6, "avg_ts": 80.25}]'
"""
_CMAKE = """#!/bin/sh
echo "$@" >> "$CALLS"
[ "$1" = --build ] || exit 0
mkdir -p "$2/bin" && cp "$BENCH" "$2/bin/llama-bench"
"""


def outcomes(page: str) -> dict[str, str]:
    """Return the outcomes of the steps, by their names."""
    return dict(re.findall(r"^\| (\w+) \| .* \| (.*) \| [\d.]+ \|$", page.partition("\n## ")[0], re.MULTILINE))


def run_of(folder: Path, **fields: Any) -> Run:
    values: dict[str, Any] = {"device": "cuda12", "gguf": Path("model.gguf"), "sources": None, "home": folder} | fields
    return Run(folder=folder, num_prompts=4, num_tokens=6, on_card=(), on_cores=(), **values)


@pytest.mark.parametrize("device", ["cpu", "vulkan"])
def test_a_run_passes_on_the_cores_and_on_a_software_device(device: str, tmp_path: Path) -> None:
    model = tmp_path / "small.gguf"
    write_gguf(
        Checkpoint.load(DEMO / "checkpoint"), model, "f32"
    )  # in f16, compilation for the software device takes minutes
    places = ["--gguf", str(model), "--home", str(tmp_path / "home"), "--report", str(tmp_path / "report")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.workshop.cards", "--device", device, *TRIAL, *places],
        cwd=ROOT,
        env=os.environ | {"GGML_VK_VISIBLE_DEVICES": "0"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    page = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert done.returncode == 0, page
    found = outcomes(page)
    assert list(found) == NAMES
    assert found.pop("library") == "left out: the package is installed, and measured below"
    assert set(found.values()) == {"passed"}
    assert re.search(r"\n8 sequences: Conch [\d.]+ tokens/s, the bare loop [\d.]+, ratio [\d.]+\n", page)
    steps_in_json = json.loads((tmp_path / "report" / "report.json").read_text())
    assert [each["name"] for each in steps_in_json] == NAMES


def test_the_sources_have_the_version_of_the_package() -> None:
    config = json.loads(Path(cyllama.__file__).with_name("build_config.json").read_text())
    assert config["versions"]["llama_cpp_version"] == LLAMA_CPP


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which no package can be installed."""

    def missing(step: Step, device: str) -> Path:
        raise LeftOut("make: no network")

    monkeypatch.setattr(cards_build, "_installed", missing)


@pytest.mark.usefixtures("without_package")
def test_without_a_package_and_a_compiler_the_reasons_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    step = Step("build", "")
    with pytest.raises(UnmetNeeds, match=r"^no package: make: no network; not compiled: nvcc is not installed$"):
        find(step, "cuda12", None, tmp_path)
    assert step.has_failed


@pytest.mark.usefixtures("without_package")
def test_without_a_package_the_library_is_compiled_and_measured_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs, sources = tmp_path / "bin", tmp_path / "llama.cpp"
    programs.mkdir()
    sources.mkdir()
    (sources / "CMakeLists.txt").touch()
    for name, text in (("nvcc", "#!/bin/sh\n"), ("cmake", _CMAKE), ("bench", _BENCH)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("BENCH", str(programs / "bench"))
    run, step = run_of(tmp_path, sources=sources), Step("build", "")
    steps.build(run, step)
    assert isinstance(run.build, Programs) and not step.has_failed
    configured, built = (tmp_path / "calls").read_text().splitlines()
    assert "-DGGML_CUDA=ON" in configured and "-DCMAKE_CUDA_ARCHITECTURES=native" in configured
    assert "--target llama-bench" in built
    steps.library(run, step)
    assert "99 layers on the card, completions of 6 tokens: 80.2 tokens/s" in step.lines
    assert step.lines[-1].endswith("Not proved: Conch on it.")
    with pytest.raises(LeftOut, match="needs the package"):
        steps.doctor(run, step)


def test_a_command_that_fails_leaves_its_last_lines_in_the_report(tmp_path: Path) -> None:
    step = Step("build", "")
    with pytest.raises(LeftOut, match="exit status 3"):
        cards_build.command(step, ["sh", "-c", "echo broken; exit 3"], 60)
    assert step.lines[-1] == "broken"


def test_prompts_differ() -> None:
    run = run_of(Path())
    run.num_prompts = 200
    assert len(set(run.prompts)) == 200
