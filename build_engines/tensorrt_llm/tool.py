"""Runs one of TensorRT-LLM's tools, with its output in a log and its progress on stderr."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.progress import Progress, elapsed_text, size_of
from build_engines.tensorrt_llm import child
from build_engines.tensorrt_llm.checks import IMAGE, TARGET_VERSION

_POLL_S = 0.5
_GRACE_S = 10.0
_TAIL_BYTES = 64 << 10
_NUM_TAIL_LINES = 20
_OUT_OF_RAM = (
    "the machine's memory (RAM) ran out: `plan` says how much it takes; fewer --workers need less, "
    "and a container may have a limit of its own"
)
# The usual causes of a failure, by their words in a log.
_CAUSES = (
    (
        r"(CUDA|[Cc]uda).*out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation",
        "the GPU's memory ran out: end other processes on it (see nvidia-smi), or use fewer --workers, "
        "a smaller --max-batch-size or --max-num-tokens, or more --gpus",
    ),
    (r"No space left on device|Disk quota exceeded", "the disk is full: free some, or name another --work-dir"),
    (
        r"GatedRepo|gated repo|Access to (model|dataset) .* is restricted|40[13] Client Error",
        "a gated repository: accept its licence on the hub, and set HF_TOKEN to a token that may read it",
    ),
    (
        r"unrecognized arguments|invalid choice|error: argument --|arguments are required"
        r"|No module named 'tensorrt_llm|cannot import name .*tensorrt_llm|tensorrt_llm\.bindings|serialized .*version",
        "the tools are of another version: TensorRT-LLM 1.2.1 and its examples at tag v1.2.1 go together",
    ),
    (
        r"no kernel image is available|(SM|sm_?)\s?\d+ is not supported|[Uu]nsupported (SM|GPU|architecture)"
        r"|not supported on (this|pre-)|compute capability",
        "the GPU's architecture has no kernels for this: another --precision, or another GPU",
    ),
    (
        r"SafetensorError|HeaderTooLarge|HeaderTooSmall|InvalidHeader|MetadataIncompleteBuffer|UnpicklingError",
        "a file of the checkpoint is damaged: download it again",
    ),
    (r"MemoryError|Cannot allocate memory|bad_alloc|\bKilled\b", _OUT_OF_RAM),
)


class ToolFailed(BuildError):
    """A tool failed. The message has the end of its log, and the usual cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """A command, with its folders and its expected output."""

    name: str  # the step's, for messages
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


def usual_cause(status: int, tail: Iterable[str]) -> str | None:
    """Return the usual cause of a failure; None: unknown.

    Args:
        status: the exit status, negative for a signal as `subprocess` has it.
        tail: the last lines of the tool's output.
    """
    text = "\n".join(tail)
    for pattern, cause in _CAUSES:
        if re.search(pattern, text):
            return cause
    return _OUT_OF_RAM if status in (-signal.SIGKILL, 128 + signal.SIGKILL) else None


def last_lines(text: str) -> list[str]:
    """Return the last lines of a log, rewritten lines in their last form."""
    lines = [line.rpartition("\r")[2].rstrip() for line in text.replace("\r\n", "\n").split("\n")]
    return [line for line in lines if line][-_NUM_TAIL_LINES:]
