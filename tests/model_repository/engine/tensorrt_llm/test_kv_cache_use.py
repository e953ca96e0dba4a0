"""The use of the KV cache, which a thread of its own reads: the call waits where there are no statistics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tensorrt_llm import _executor
from tensorrt_llm._executor import Executor

from tests.model_repository.engine.tensorrt_llm.conftest import BACKENDS, Tiny, write_model
from tests.waiting import DEADLINE_S, wait_until

LONG = tuple(range(3, 90))  # several blocks of the KV cache


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set while a read of statistics waits, which it does until the test ends."""
    is_waiting, has_ended = threading.Event(), threading.Event()

    def fetch_stats(self: Executor, timeout_s: float | None) -> list[str]:
        is_waiting.set()
        has_ended.wait()
        return []

    monkeypatch.setattr(Executor, "fetch_stats", fetch_stats)
    yield is_waiting
    has_ended.set()


def test_requests_are_answered_while_a_read_of_statistics_waits(
    start: Callable[..., Tiny], waiting: threading.Event
) -> None:
    tiny = start(backend="pytorch")
    assert len(tiny.tokens()) == 8
    assert waiting.wait(DEADLINE_S)
    assert len(tiny.tokens()) == 8


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_use_of_the_kv_cache_is_what_tensorrt_llm_says(
    start: Callable[..., Tiny], backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_executor, "_STEP_S", 0.05)  # on a busy machine the request must not end too soon
    write_model(tmp_path, gather_context_logits=False)
    tiny = start(backend=backend, logprobs="false", prompt_logprobs="false")
    assert use_of(tiny) == (None, None)  # before the first step
    tiny.submit(prompt_token_ids=LONG, max_tokens=100)
    wait_until(lambda: tiny.runtime.stats().max_kv_tokens == 3200, "the statistics come")
    used, _ = use_of(tiny)
    assert used is not None and used % 32 == 0 < used
    tiny.runtime.free(tiny.num_submitted)
    tiny.wait_until_idle()
    assert use_of(tiny) == (0, 3200)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"backend": "engine"}, marks=pytest.mark.engine_backend),
        pytest.param({"backend": "engine", "logprobs": "false"}, marks=pytest.mark.engine_backend),
        {"backend": "pytorch", "iteration_stats": "false"},
    ],
)
def test_without_statistics_the_use_is_unknown_and_not_estimated(
    start: Callable[..., Tiny], options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Executor, "fetch_stats", None)
    tiny = start(**options)
    tiny.run()
    assert use_of(tiny) == (None, None)
    assert "tensorrt-llm-statistics" not in {thread.name for thread in threading.enumerate()}


def test_statistics_that_cannot_be_read_leave_the_use_unknown(
    start: Callable[..., Tiny], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fetch_stats(self: Executor, timeout_s: float | None) -> list[str]:
        raise RuntimeError("no statistics")

    monkeypatch.setattr(Executor, "fetch_stats", fetch_stats)
    tiny = start(backend="pytorch")
    wait_until(lambda: "the use of the KV cache is unknown" in caplog.text, "it is logged")
    assert len(tiny.tokens()) == 8
    assert use_of(tiny) == (None, None)


def use_of(tiny: Tiny) -> tuple[int | None, int | None]:
    stats = tiny.runtime.stats()
    return stats.num_kv_tokens_used, stats.max_kv_tokens
