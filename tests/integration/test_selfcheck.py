"""The whole self-check, with doubles of TensorRT-LLM's tools and of its Python package: build, serve, ask, report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOUBLES = ROOT / "tests" / "doubles"
_TIMEOUT_S = 300.0


@pytest.mark.parametrize("backend", ["engine", "pytorch"])
def test_a_self_check_with_doubles_passes_and_says_that_they_are_doubles(tmp_path: Path, backend: str) -> None:
    report_dir = tmp_path / "report"
    places = ["--state-dir", str(tmp_path / "state"), "--report", str(report_dir), "--backend", backend]
    if backend == "engine":
        places += ["--tensorrt-llm-examples", str(DOUBLES / "bin")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.doubles.selfcheck", *places],
        cwd=ROOT,
        env=os.environ
        | {
            "PATH": f"{DOUBLES / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{DOUBLES / 'python'}:{ROOT}",
            "CONCH_DOUBLE_GPUS": "NVIDIA H100 80GB HBM3, 81559, 9.0",
            "OPENBLAS_NUM_THREADS": "1",
            "HF_TOKEN": "hf_a_secret_of_this_test",
        },
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((report_dir / "report.json").read_text(encoding="utf-8"))
    assert report["has_passed"]
    assert "A DOUBLE, NOT TensorRT-LLM" in report["headline"]
    sections = {section["title"]: section for section in report["sections"]}
    assert sections["Machine"]["facts"]["tensorrt_llm"] == "1.2.1"
    assert "checkpoint/model.safetensors" in sections["Build"]["facts"] or backend == "engine"
    assert sections["Server"]["facts"]["Triton"].startswith("triton ")
    verdicts = [finding["verdict"] for finding in sections["The API's table of parameters"]["findings"]]
    # The PyTorch backend has no seed, so its effects are not tried there.
    expected = {"passed", "refused"} if backend == "engine" else {"passed", "refused", "not tried"}
    assert verdicts.count("passed") > 40 and set(verdicts) == expected
    observed = {finding["name"]: finding["verdict"] for finding in sections["Not proved on a GPU"]["findings"]}
    assert set(observed.values()) == {"passed", "not tried"}
    claim = "The same seed gives the same text, on the engine backend."
    assert observed[claim] == ("passed" if backend == "engine" else "not tried")
    page = (report_dir / "report.md").read_text(encoding="utf-8")
    assert "Everything passed." in page and "8 streams" in page
    assert "hf_a_secret" not in page
