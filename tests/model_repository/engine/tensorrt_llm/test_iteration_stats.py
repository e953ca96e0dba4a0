"""Statistics of steps, which a thread of its own reads: the call waits where there are no statistics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorrt_llm import _executor
from tensorrt_llm._executor import Executor

from model_repository.engine.tensorrt_llm.iteration_stats import IterationStats
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


def test_requests_steps_and_reused_blocks_are_counted(
    start: Callable[..., Tiny], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_executor, "_STEP_S", 0.05)  # on a busy machine the request must not end too soon
    tiny = start(backend="pytorch")
    assert not tiny.runtime.stats().library.is_known
    for _ in range(2):  # the second time its first two blocks are in the cache
        tiny.run(prompt_token_ids=LONG, max_tokens=1)
    tiny.submit(max_tokens=200)
    wait_until(lambda: tiny.runtime.stats().library.num_scheduled == 1, "the statistics come")
    library = tiny.runtime.stats().library
    assert library.num_reused_blocks == 2 < library.num_missed_blocks
    assert library.num_steps >= 3 and library.step_s > 0
    tiny.runtime.free(tiny.num_submitted)
    tiny.wait_until_idle()
    assert tiny.runtime.stats().library.num_scheduled == 0


def test_a_step_of_several_ranks_is_one_step() -> None:
    """Only the last row was kept: of another rank, with an empty queue."""
    stats = IterationStats()
    for _ in range(2):
        for row in ROWS:
            stats.add(row)
    assert (stats.num_queued, stats.num_scheduled, stats.num_paused) == (7, 2 + 3, 1)
    assert (stats.num_kv_tokens_used, stats.max_kv_tokens) == (2 * 4 * 32, 2 * 100 * 32)
    assert stats.num_steps == 2 and stats.step_s == pytest.approx(2 * 0.02)
    assert (stats.num_draft_tokens, stats.num_accepted_tokens) == (2 * 6, 2 * 5)
    assert (stats.num_reused_blocks, stats.num_missed_blocks) == (30, 10)
    assert (stats.num_host_blocks_used, stats.max_host_blocks) == (5 + 1, 50 + 10)


RANK_0: dict[str, Any] = {
    "attentionDpRank": 0,
    "iterLatencyMS": 40.0,  # with the overlap scheduler
    "hostStepTimeMS": 20.0,
    "numQueuedRequests": 7,
    "kvCacheStats": {
        "usedNumBlocks": 4,
        "maxNumBlocks": 100,
        "tokensPerBlock": 32,
        "reusedBlocks": 30,
        "missedBlocks": 10,
    },
    "inflightBatchingStats": {"numScheduledRequests": 2, "numPausedRequests": 0},
    "specDecodingStats": {"numDraftTokens": 6, "numAcceptedTokens": 5},
    "kvCacheIterationStats": {
        "4096": {"secondaryUsedNumBlocks": 5, "secondaryMaxNumBlocks": 50},
        "131072": {"secondaryUsedNumBlocks": 1, "secondaryMaxNumBlocks": 10},
    },
}
RANK_1 = RANK_0 | {
    "attentionDpRank": 1,
    "numQueuedRequests": 0,
    "inflightBatchingStats": {"numScheduledRequests": 3, "numPausedRequests": 1},
    "kvCacheIterationStats": None,
}
ROWS = (RANK_0, RANK_1)


def test_rows_of_older_releases_have_fewer_parts() -> None:
    stats = IterationStats()
    stats.add({"iterLatencyMS": 40.0, "numQueuedRequests": 1, "kvCacheStats": None, "specDecodingStats": None})
    assert (stats.num_queued, stats.num_steps, stats.step_s, stats.max_kv_tokens) == (1, 1, 0.04, 0)


def use_of(tiny: Tiny) -> tuple[int | None, int | None]:
    stats = tiny.runtime.stats()
    return stats.num_kv_tokens_used, stats.max_kv_tokens
