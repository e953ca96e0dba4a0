"""The usual causes of a tool's failure, found in the end of its log."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

_NUM_TAIL_LINES = 20
_OUT_OF_RAM = (
    "the machine's memory (RAM) ran out: `plan` says how much it takes; fewer --workers need less, "
    "and a container may have a limit of its own"
)

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
