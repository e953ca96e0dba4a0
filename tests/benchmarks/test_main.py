"""The command, on the real stack: one small scenario from the start of the servers to the files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.load import Target


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    command = [sys.executable, "-m", "tests.benchmarks", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_scenario_runs_from_start_to_files(tmp_path: Path) -> None:
    done = bench("--quick", "--scenario", "unpaced", "--output", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    [scenario] = json.loads((tmp_path / "results.json").read_text())["scenarios"]
    [point] = scenario["points"]
    assert point["metrics"]["tokens_per_s"]["median"] > 0
    assert point["metrics"]["num_failed"]["median"] == 0
    used = point["runs"][0]["cpu_s"]
    assert used.keys() >= {"frontend", "tritonserver", "tokenizer", "engine", "detokenizer"}
    assert b"its figures mean nothing" in (tmp_path / "latency.png").read_bytes()
    assert (tmp_path / "servers.log").read_text()


def test_a_server_elsewhere_is_measured_without_its_cpu(tmp_path: Path, instant: Target) -> None:
    where = ["--url", instant.url, "--model", instant.model, "--output", str(tmp_path)]
    done = bench(*where, "--streams", "2", "--window-s", "0.2", "--warmup-s", "0", "--repeat", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "its CPU and memory are not seen" in done.stdout
    [point] = json.loads((tmp_path / "results.json").read_text())["scenarios"][0]["points"]
    assert len(point["runs"]) == 2
    assert "cpu_us_per_token" not in point["metrics"]


def test_a_server_that_answers_wrongly_fails_the_command(tmp_path: Path, instant: Target) -> None:
    where = ["--url", instant.url, "--model", "short", "--output", str(tmp_path)]
    done = bench(*where, "--streams", "2", "--window-s", "0.2", "--warmup-s", "0", "--repeat", "1")
    assert done.returncode == 1
    assert "tokens by usage" in done.stdout
