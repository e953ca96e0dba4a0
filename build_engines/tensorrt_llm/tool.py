"""Runs one of TensorRT-LLM's tools: its output in a log, its progress shown, nothing of it left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.progress import Progress, elapsed_text
from build_engines.tensorrt_llm import child
from build_engines.tensorrt_llm.checks import IMAGE, TARGET_VERSION
from build_engines.tensorrt_llm.failure import last_lines, usual_cause

_LOOK_PERIOD_S = 0.5
_GRACE_S = 10.0
_TAIL_BYTES = 64 << 10


class ToolFailed(BuildError):
    """A tool ended badly; the message has the end of its log, and what usually causes that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """A command, and what is known of it beforehand."""

    what: str  # for people
    command: Sequence[str]
    folder: Path  # where it runs; some tools leave a cache there
    log: Path
    output: Path  # whose growth shows how far it is
    num_bytes: int  # that the output will have, about
    held: tuple[int, ...] = ()  # descriptors of locks, which the tool holds as long as it lives


def run_tool(run: ToolRun, check: Callable[[], None] = lambda: None) -> None:
    """Run it to its end.

    Whatever ends this call also ends the tool and its children; when this process is killed outright, the kernel ends
    the tool, and the next builder waits for children of it at the locks that they hold.

    Args:
        run: what to run.
        check: called now and then; what it raises ends the tool.

    Raises:
        ToolFailed: it cannot be started, or ends with another status than 0.
    """
    started = time.monotonic()
    with run.log.open("wb") as log, Progress.shown(run.what, run.num_bytes) as progress:
        process = _start(run, log.fileno())
        try:
            while True:
                try:
                    status = process.wait(timeout=_LOOK_PERIOD_S)
                    break
                except subprocess.TimeoutExpired:
                    check()
                    progress.set(*_growth(run.output))
        except BaseException:
            _end(process)
            raise
    if status:
        _end(process)  # what it started may outlive it
        raise ToolFailed(_failure(run, status, time.monotonic() - started))


def _start(run: ToolRun, log: int) -> subprocess.Popen[bytes]:
    program = run.command[0]
    if shutil.which(program) is None:
        rule = f"is TensorRT-LLM {TARGET_VERSION} installed here? It comes with the image {IMAGE}"
        raise ToolFailed(f"{run.what}: {program}: no such program: {rule}")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *run.command],
        cwd=run.folder,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=run.held,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a tool and everything in its session's process group."""
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


def _growth(output: Path) -> tuple[int, str]:
    """Return how many bytes a folder has, and how many files."""
    sizes = []
    for path in output.rglob("*"):
        try:
            sizes.append(path.stat().st_size if path.is_file() else None)
        except FileNotFoundError:  # it was renamed meanwhile
            continue
    files = [size for size in sizes if size is not None]
    return sum(files), f"{len(files)} files"


def _failure(run: ToolRun, status: int, elapsed_s: float) -> str:
    with run.log.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
        tail = last_lines(log.read().decode("utf-8", "replace"))
    how = f"ended by signal {-status}" if status < 0 else f"exit status {status}"
    cause = usual_cause(status, tail)
    lines = [f"{run.what} failed ({how}) after {elapsed_text(elapsed_s)}: {cause or 'see the end of its log'}"]
    lines += [f"    {line}" for line in tail]
    return "\n".join([*lines, f"whole log: {run.log}"])
