"""Usual causes of a tool's failure."""

from __future__ import annotations

import pytest

from build_engines.tensorrt_llm.failure import last_lines, usual_cause


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
