"""Running one tool."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from build_engines.errors import BuildError
from build_engines.tensorrt_llm import tool
from build_engines.tensorrt_llm.tool import ToolFailed, ToolRun, last_lines, run_tool, usual_cause


@pytest.fixture
def run(tmp_path: Path) -> ToolRun:
    """A tool that does nothing yet."""
    (tmp_path / "output").mkdir()
    return ToolRun(
        name="engine",
        command=["true"],
        folder=tmp_path,
        log=tmp_path / "engine.log",
        output=tmp_path / "output",
        num_bytes=10,
    )


def python(run: ToolRun, script: str) -> ToolRun:
    return replace(run, command=[sys.executable, "-c", script])


def test_a_tools_output_is_in_the_log(run: ToolRun) -> None:
    run_tool(python(run, "import sys, os; print(os.getcwd(), flush=True); sys.stderr.write('warning')"))
    assert run.log.read_text() == f"{run.folder}\nwarning"


def test_a_failure_shows_the_end_of_the_log(run: ToolRun) -> None:
    with pytest.raises(ToolFailed) as caught:
        run_tool(python(run, "print(*range(100), sep='\\n'); raise SystemExit(3)"))
    lines = str(caught.value).splitlines()
    assert lines[0] == "engine failed (exit status 3) after 0 s: see the end of its log"
    assert lines[1:-1] == [f"    {number}" for number in range(80, 100)]
    assert lines[-1] == f"complete log: {run.log}"


def test_a_missing_tool_is_named(run: ToolRun) -> None:
    with pytest.raises(ToolFailed, match="engine: no-such-tool: no such program: is TensorRT-LLM"):
        run_tool(replace(run, command=["no-such-tool"]))


def test_an_exception_of_the_check_ends_the_tool_and_its_children(
    run: ToolRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "_POLL_S", 0.01)
    pipe = run.folder / "pids"
    os.mkfifo(pipe)
    reader, pids = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), list[int]()
    processes: list[int] = []

    def give_up() -> None:
        with contextlib.suppress(BlockingIOError):
            pids.extend(int(word) for word in os.read(reader, 4096).split())
        if len(pids) == 2:
            processes.extend(os.pidfd_open(pid) for pid in pids)
            raise BuildError("enough")

    write = f"open({str(pipe)!r}, 'w').write(str(os.getpid()) + ' ')"
    with pytest.raises(BuildError, match="enough"):
        run_tool(python(run, f"import os, signal; os.fork(); {write}; signal.pause()"), give_up)
    for process in processes:
        assert select.select([process], [], [], 60) == ([process], [], [])  # it has ended
        os.close(process)
    os.close(reader)


@pytest.mark.parametrize(
    ("status", "line", "cause"),
    [
        (1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "the GPU's memory ran out"),
        (-9, "Loading checkpoint shards", "the machine's memory (RAM) ran out"),
        (1, "MemoryError", "the machine's memory (RAM) ran out"),
        (1, "OSError: [Errno 28] No space left on device", "the disk is full"),
        (2, "trtllm-build: error: unrecognized arguments: --gemm", "the tools are of another version"),
        (1, "ModuleNotFoundError: No module named 'tensorrt_llm.bindings'", "the tools are of another version"),
        (1, "Access to model meta-llama/X is restricted. You must have access", "a gated repository"),
        (1, "CUDA error: no kernel image is available for execution on the device", "the GPU's architecture"),
        (1, "safetensors_rust.SafetensorError: Error while deserializing header", "a file of the checkpoint"),
        (1, "ValueError: something else", None),
    ],
)
def test_a_failure_has_its_usual_cause(status: int, line: str, cause: str | None) -> None:
    found = usual_cause(status, ["before", line, "after"])
    assert found is None if cause is None else str(found).startswith(cause)


def test_the_end_of_a_log_has_no_empty_and_no_rewritten_lines() -> None:
    text = "".join(f"line {number}\n\n" for number in range(30)) + "loading 1\rloading 2\rloading 3\r\nlast"
    lines = last_lines(text)
    assert len(lines) == 20
    assert lines[-3:] == ["line 29", "loading 3", "last"]
