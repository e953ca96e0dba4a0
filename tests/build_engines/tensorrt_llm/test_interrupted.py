"""Builds that are killed, stopped or concurrent: in the end there is one complete artifact."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from build_engines import artifact
from tests.build_engines.tensorrt_llm.builder import Builder, Gate
from tests.build_engines.tensorrt_llm.conftest import Here
from tests.processes import is_running

pytestmark = pytest.mark.usefixtures("servers")


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """Where a tool stops."""
    gate = Gate.make(tmp_path / "gate")
    yield gate
    os.close(gate.reached)


def assert_one_artifact(builder: Builder) -> Path:
    """Check that only one complete artifact is left, and return it."""
    (folder,) = builder.artifacts()
    manifest = artifact.verify(folder)
    assert {"engine/config.json", "engine/rank0.engine", "engine/rank1.engine"} <= set(manifest.files)
    assert (folder / "engine" / "rank1.engine").read_bytes().startswith(b"engine of a double 1 ")
    assert [path.name for path in builder.work_dir.iterdir() if path.is_dir()] == []
    return folder


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def wait_for_line(process: subprocess.Popen[str], text: str) -> str:
    """Read a builder's output until a line has the text."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"it never said {text!r}")


@pytest.mark.parametrize("program", ["convert_checkpoint.py", "trtllm-build"])
def test_a_build_that_was_killed_in_a_tool_goes_on(
    builder: Builder, gate: Gate, here: Here, program: str, caplog: pytest.LogCaptureFixture
) -> None:
    process = builder.start(CONCH_DOUBLE_FAULT=f"{program}=gate", CONCH_DOUBLE_GATE=str(gate.folder))
    tool = gate.wait()
    kill(process)
    assert all(artifact.why_incomplete(folder) for folder in builder.artifacts())
    here.build(builder)
    assert "of a killed build" in caplog.text
    was_converted = program == "trtllm-build"
    assert ("convert_checkpoint.py" in caplog.text) != was_converted  # a finished step is not done again
    assert_one_artifact(builder)
    assert not is_running(tool)


@pytest.mark.parametrize(
    "target",
    [
        "build_engines.tensorrt_llm.work._record",
        "build_engines.artifact.Manifest.save",
        "build_engines.artifact.os.rename",
        "build_engines.tensorrt_llm.spec.TensorRtLlmSpec.clean_up",
    ],
)
def test_a_build_that_was_killed_between_tools_goes_on(builder: Builder, here: Here, target: str) -> None:
    process = builder.start_and_die_in(target)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    for folder in builder.artifacts():  # what has its name is whole already
        assert folder.name.startswith(".") or artifact.verify(folder)
    here.build(builder)
    assert_one_artifact(builder)


def test_a_second_builder_waits_for_the_artifact_of_the_first(builder: Builder, gate: Gate) -> None:
    first = builder.start(CONCH_DOUBLE_FAULT="trtllm-build=gate", CONCH_DOUBLE_GATE=str(gate.folder))
    gate.wait()
    second = builder.start()
    line = wait_for_line(second, "waiting for")
    assert f"process {first.pid} on " in line
    assert "builds tiny--llama-" in line
    gate.open()
    outputs = [process.communicate() for process in (first, second)]
    assert [process.returncode for process in (first, second)] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]  # the same artifact
    assert "trtllm-build" not in outputs[1][1]
    assert_one_artifact(builder)


def test_what_outlives_a_killed_builder_keeps_the_next_one_waiting(builder: Builder, gate: Gate) -> None:
    """A worker of the tool is in a session of its own, where neither the kernel nor the builder ends it."""
    first = builder.start(CONCH_DOUBLE_FAULT="trtllm-build=orphan", CONCH_DOUBLE_GATE=str(gate.folder))
    gate.wait()
    first.send_signal(signal.SIGKILL)
    first.wait()
    second = builder.start()
    assert f"process {first.pid} on " in wait_for_line(second, "waiting for")
    gate.open()
    _, err = second.communicate()
    assert second.returncode == 0, err
    assert_one_artifact(builder)
    first.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_tool_and_cleans_up(builder: Builder, gate: Gate, number: signal.Signals) -> None:
    process = builder.start(CONCH_DOUBLE_FAULT="trtllm-build=gate", CONCH_DOUBLE_GATE=str(gate.folder))
    tool = gate.wait()
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 128 + number
    assert f"{number.name}: stopping; unfinished artifacts are removed" in err
    assert "Traceback" not in err
    assert not is_running(tool)
    assert builder.artifacts() == []
    (converted,) = (path for path in builder.work_dir.iterdir() if path.is_dir())
    assert converted.name.startswith("checkpoint-")
