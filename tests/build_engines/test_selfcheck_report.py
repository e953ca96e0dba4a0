"""The report of a self-check, and what it is made of."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from build_engines.selfcheck.command import lines_of, run_shown, tail
from build_engines.selfcheck.machine_facts import machine_facts, used_gpu_bytes
from build_engines.selfcheck.report import Finding, Report, Section, Verdict
from build_engines.selfcheck.run import secrets_of
from build_engines.selfcheck.table import read_results, why_no_table

NVIDIA_SMI = """#!/bin/sh
case "$1" in
--query-gpu=*)
    echo '0, NVIDIA H100 80GB HBM3, 81559, 512, 590.44.01'
    echo '1, NVIDIA H100 80GB HBM3, 81559, 7, 590.44.01' ;;
*) echo '| NVIDIA-SMI 590.44.01    Driver Version: 590.44.01    CUDA Version: 13.1     |' ;;
esac
"""
RESULTS = """<testsuites><testsuite>
<testcase name="test_the_tensorrt_llm_runtime_shows_the_same_effects[completions-seed]" time="0.25"/>
<testcase name="test_the_tensorrt_llm_runtime_shows_the_same_effects[completions-n]" time="1">
<failure message="AssertionError: assert 1\n == 2">long</failure></testcase>
<testcase name="test_a_field_that_tensorrt_llm_lacks_is_refused[completions-images]" time="0.5"/>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "TOKEN", "hf_token", "AWS_SECRET_ACCESS_KEY", "NGC_API_KEY", "GITHUB_PAT", "DB_PASSWORD", "KEY"],
)
def test_a_value_whose_name_is_a_secrets_is_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_secret_too")
    environment = {name: "hf_secret", "PATH": "/usr/bin:/bin", "KEYBOARD": "qwertyuiop"}
    assert secrets_of(environment) == ["hf_secret_too", "hf_secret"]  # the longer one first: it begins like the other


def test_a_report_counts_verdicts_and_leaves_secrets_out(tmp_path: Path) -> None:
    report = Report("a | headline")
    report.sections.append(
        Section(
            title="First",
            findings=[Finding("a", Verdict.PASSED, "x | y", 1.5), Finding("b", Verdict.FAILED, "hf_secret\nline")],
            facts={"name": "value"},
            lines=["said hf_secret"],
        )
    )
    report.write(tmp_path, ["hf_secret"])
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "Failed: First (1)." in page
    assert "1 passed, 1 failed. 0.0 s." in page
    assert "| a | passed | x \\| y, 1.50 s |" in page
    assert "| b | failed | [left out] line |" in page
    assert "hf_secret" not in page + (tmp_path / "report.json").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["has_passed"] is False


def test_rows_of_the_table_are_passed_failed_or_refused_as_they_must_be(tmp_path: Path) -> None:
    (tmp_path / "table.xml").write_text(RESULTS, encoding="utf-8")
    assert list(read_results(tmp_path / "table.xml")) == [
        Finding("completions-seed", Verdict.PASSED, "", 0.25),
        Finding("completions-n", Verdict.FAILED, "AssertionError: assert 1 == 2", 1.0),
        Finding("completions-images", Verdict.REFUSED, "", 0.5),
    ]


def test_without_the_tests_it_says_in_one_line_what_to_do(tmp_path: Path) -> None:
    reason = why_no_table(tmp_path)
    assert reason is not None and "pip install -e" in reason and "\n" not in reason
    assert why_no_table() is None


def test_memory_driver_and_cuda_are_those_that_nvidia_smi_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(NVIDIA_SMI, encoding="ascii")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    facts = machine_facts()
    assert facts["GPU 0"] == "NVIDIA H100 80GB HBM3, 81559 MiB, of which 512 MiB are taken, driver 590.44.01"
    assert facts["CUDA of the driver"] == "13.1"
    assert used_gpu_bytes() == [512 << 20, 7 << 20]


def test_a_machine_without_nvidia_smi_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    facts = machine_facts()
    assert facts["GPUs"].startswith("not told") and facts["CUDA of the driver"].startswith("not told")
    assert used_gpu_bytes() is None


def test_a_childs_output_is_shown_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "child.log"
    assert run_shown(["-c", "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)"], log) == 3
    assert lines_of(log) == ["one", "two"]
    assert all(re.fullmatch(r"\[ +\d+\.\d s\] (one|two)", line) for line in tail(log))
    assert "    one\n    two\n" in capsys.readouterr().err
