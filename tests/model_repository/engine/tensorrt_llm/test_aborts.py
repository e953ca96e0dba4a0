"""Requests of clients that left, against the double."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tensorrt_llm import _executor

from model_repository.engine.tensorrt_llm.options import Aborts
from tests.model_repository.engine.tensorrt_llm.conftest import RUNTIME, Tiny, request
from tests.waiting import wait_until

PROMPT = tuple(range(3, 68))  # two blocks of the KV cache, and one token


def leave_in_prefill(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Submit a prompt of nine chunks, leave between two of them, and return the result once it has ended."""
    loop, running = tiny.runtime._loop, tiny.runtime._llm._executor._running
    with monkeypatch.context() as slow:
        slow.setattr(_executor, "_STEP_S", 0.05)
        number = tiny.submit(prompt_token_ids=PROMPT, max_tokens=180)
        wait_until(
            lambda: number in loop._results and any(each.num_computed for each in running), "a chunk is computed"
        )
        result = loop._results[number]
        tiny.runtime.free(number)
        wait_until(lambda: result.aborted() or result.finished, "it is aborted")
    tiny.wait_until_idle()
    return result


def test_the_next_prompt_with_the_same_beginning_reads_no_blocks_that_were_never_computed(
    start: Callable[..., Tiny], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On TensorRT-LLM 1.2 an abort between two chunks left such blocks, so it waits for the first token."""
    tiny = start(backend="pytorch", max_num_tokens="8")
    result = leave_in_prefill(tiny, monkeypatch)
    assert result.aborted() and len(result.outputs[0].token_ids) < 180
    expected = start(backend="pytorch").tokens(prompt_token_ids=PROMPT)
    assert tiny.tokens(prompt_token_ids=PROMPT) == expected


def test_without_aborts_a_request_runs_to_its_end(start: Callable[..., Tiny]) -> None:
    tiny = start(backend="pytorch", aborts="never")
    number = tiny.submit(max_tokens=100)
    wait_until(lambda: number in tiny.runtime._loop._results, "it runs")
    result = tiny.runtime._loop._results[number]
    tiny.runtime.free(number)
    tiny.wait_until_idle()
    assert (result.aborted(), len(result.outputs[0].token_ids)) == (False, 100)


@pytest.mark.parametrize(
    ("version", "texts", "expected"),
    [
        ("1.2.1", {}, Aborts.AFTER_PREFILL),
        ("1.3.0rc29", {}, Aborts.ALWAYS),
        ("1.2.1", {"aborts": "always"}, Aborts.ALWAYS),
        ("1.3.0rc29", {"aborts": "never"}, Aborts.NEVER),
    ],
)
def test_a_release_whose_aborts_are_not_trusted_is_told_after_the_prefill(
    start: Callable[..., Tiny], monkeypatch: pytest.MonkeyPatch, version: str, texts: dict[str, str], expected: Aborts
) -> None:
    tiny = start(backend="pytorch", **texts)
    monkeypatch.setattr(RUNTIME, "__version__", version)
    assert tiny.runtime._aborts(request()) is expected
