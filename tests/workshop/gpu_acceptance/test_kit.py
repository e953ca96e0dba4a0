"""The GPU acceptance kit without a GPU."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from openai import OpenAI

from build_engines.catalog import Catalog
from build_engines.tensorrt_llm.source import Source
from tests.build_engines.tensorrt_llm.builder import write_examples
from tests.tensorrt_llm_artifact import DEMO, DEMO_CATALOG
from tests.workshop.gpu_acceptance import claims
from tests.workshop.gpu_acceptance.__main__ import CHECKS
from tests.workshop.gpu_acceptance.subject import Stream, Subject

ROOT = Path(__file__).parents[3]
DOUBLES = ROOT / "tests" / "doubles"
STEPS = ["Machine", "Preparation", "Plan", "Build", "Verify", "Serve", "Checks"]


def run(tmp_path: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Run the kit, and return its exit status, its report and its output."""
    places = ["--home", str(tmp_path / "state"), "--report", str(tmp_path / "report")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.workshop.gpu_acceptance", *places, *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, (tmp_path / "report" / "report.md").read_text(encoding="utf-8"), done.stderr


def test_a_failed_build_gives_a_report_without_secrets(tmp_path: Path) -> None:
    status, page, _ = run(tmp_path, "--gpu", "h100", PATH="", MY_TOKEN="TensorRT-LLM")
    assert status == 1
    assert "Failed: Preparation, Build." in page
    assert re.findall("^## (.*)", page, re.MULTILINE) == ["Machine", "Preparation", "Plan", "Build"]
    assert "| A GPU is visible | failed | " in page and "Look at: the driver, NVIDIA's container toolkit" in page
    assert "demo on 1 x H100" in page and "nvidia-smi: not installed" in page
    assert "RuntimeError: exit status 1: see build.log" in page
    assert "[left out]: not installed" in page and "TensorRT-LLM" not in page
    assert "error: " in (tmp_path / "report" / "build.log").read_text(encoding="utf-8")
    with tarfile.open(tmp_path / "report.tar.gz") as tar:
        texts = {name: file.read().decode() for name in tar.getnames() if (file := tar.extractfile(name)) is not None}
    assert texts.keys() == {"report/build.log", "report/plan.log", "report/report.md"}
    assert all(texts.values()) and not any("TensorRT-LLM" in text for text in texts.values())


def test_the_page_marks_the_claims_that_the_acceptance_kit_tests() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    section = " ".join(page.partition("## Not proved on a GPU\n")[2].partition("\n## ")[0].split())
    mark = " *(tested by the kit)*"
    marked = [item.removesuffix(mark) for item in section.split(" - ")[1:] if item.endswith(mark)]
    tests = [test for name, test in vars(claims).items() if name.startswith("test_")]
    docstrings = [" ".join(test.__doc__.split()) for test in tests if test.__doc__]
    assert marked == [text for text in docstrings if "no benchmark" not in text]


def test_the_checks_exist() -> None:
    for path, _, name in (check.partition("::") for check in CHECKS):
        text = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {name or 'test_'}" in text, path


def test_the_catalog_has_the_end_tokens_of_the_demo_checkpoint() -> None:
    entry = Catalog.load(DEMO_CATALOG).find("demo")
    assert set(Source.load(DEMO / "checkpoint", entry).checkpoint.eos_token_ids) == set(entry.eos_token_ids)


@pytest.mark.parametrize("backend", ["engine", "pytorch"])
def test_a_run_on_doubles_passes_and_names_the_double(tmp_path: Path, backend: str) -> None:
    status, page, output = run(
        tmp_path,
        "--backend",
        backend,
        *(("--tensorrt-llm-examples", str(write_examples(tmp_path / "examples"))) if backend == "engine" else ()),
        PATH=f"{DOUBLES / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        PYTHONPATH=f"{DOUBLES / 'python'}:{ROOT}",
        CONCH_DOUBLE_GPUS="NVIDIA H100 80GB HBM3, 81559, 9.0",
        OPENBLAS_NUM_THREADS="1",
    )
    assert status == 0, page + output
    assert "test double" in page.lower() and "Everything passed." in page
    assert re.findall("^## (.*)", page, re.MULTILINE) == STEPS
    assert page.count(" | passed | ") > 60
    seed = "passed" if backend == "engine" else "skipped"
    assert f"| The same seed gives the same text, on the engine backend. | {seed} |" in page


class BadSubject(Subject):
    """A server that ignores every field and never gives the same answer twice."""

    numbers = itertools.count(20)

    def post(self, path: str, **fields: Any) -> Any:
        number = next(self.numbers)
        choice = {
            "message": {"content": "I know nothing."},
            "text": f"text {number}",
            "token_ids": [number],
            "finish_reason": "length",
            "logprobs": {"token_logprobs": [-number]},
        }
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}
        return {"choices": [choice], "usage": usage, "tokens": [1, 2]}

    def stream(self, **fields: Any) -> Stream:
        return Stream(0.0, 0.0, 1)


@pytest.mark.parametrize("name", [name for name in vars(claims) if name.startswith("test_") and name != "test_speed"])
def test_every_claim_fails_on_a_bad_server(name: str, record_property: Callable[[str, str], None]) -> None:
    claim = getattr(claims, name)
    backend = "pytorch" if name == "test_prompt_cache" else "engine"
    subject = BadSubject(cast(OpenAI, None), "demo", backend, eos_token_ids=(3,), context_window=2048)
    given = {"subject": subject, "record_property": record_property}
    with pytest.raises(AssertionError):
        claim(**{argument: given[argument] for argument in claim.__annotations__ if argument in given})
