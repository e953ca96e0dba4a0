"""Runs one of TensorRT-LLM's tools, with its output in a log and its progress on stderr."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.progress import Progress, elapsed_text, size_of
from build_engines.tensorrt_llm import child
from build_engines.tensorrt_llm.checks import IMAGE, TARGET_VERSION
from build_engines.tensorrt_llm.failure import last_lines, usual_cause

_POLL_S = 0.5
_GRACE_S = 10.0
_TAIL_BYTES = 64 << 10


class ToolFailed(BuildError):
    """A tool failed. The message has the end of its log, and the usual cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """A command, with its folders and its expected output."""

    name: str  # of the step, for messages
    command: Sequence[str]
    folder: Path  # working directory; some tools write a cache there
    log: Path
    output: Path  # its growth is the progress
    num_bytes: int  # expected size of the output
    locks: tuple[int, ...] = ()  # descriptors of locks, which the tool inherits
    environment: Mapping[str, str] | None = None  # None: this process's


def run_tool(run: ToolRun, check: Callable[[], None] = lambda: None) -> None:
    """Run a tool to its end.

    An exception in this call ends the tool and its children. If this process is killed, the kernel ends the tool, and
    the locks make the next builder wait for its children.

    Args:
        run: the command.
        check: called twice a second; its exception ends the tool.

    Raises:
        ToolFailed: the tool cannot be started, or its exit status is not 0.
    """
    started = time.monotonic()
    with run.log.open("wb") as log, Progress(run.name, run.num_bytes, is_estimate=True) as progress:
        process = _start(run, log.fileno())
        try:
            while True:
                try:
                    status = process.wait(timeout=_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    check()
                    num_bytes, num_files = size_of(run.output)
                    progress.set(num_bytes, f"{num_files} files")
        except BaseException:
            _end(process)
            raise
    if status:
        _end(process)  # its children may be still running
        raise ToolFailed(_failure(run, status, time.monotonic() - started))


def _start(run: ToolRun, log: int) -> subprocess.Popen[bytes]:
    program = run.command[0]
    if shutil.which(program) is None:
        rule = f"is TensorRT-LLM {TARGET_VERSION} installed here? It comes with the image {IMAGE}"
        raise ToolFailed(f"{run.name}: {program}: no such program: {rule}")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *run.command],
        cwd=run.folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=run.environment,
        pass_fds=run.locks,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a tool and its process group."""
    for number, grace_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=grace_s)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def _failure(run: ToolRun, status: int, elapsed_s: float) -> str:
    with run.log.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
        tail = last_lines(log.read().decode("utf-8", "replace"))
    how = f"ended by signal {-status}" if status < 0 else f"exit status {status}"
    cause = usual_cause(status, tail)
    lines = [f"{run.name} failed ({how}) after {elapsed_text(elapsed_s)}: {cause or 'see the end of its log'}"]
    lines += [f"    {line}" for line in tail]
    return "\n".join([*lines, f"complete log: {run.log}"])
