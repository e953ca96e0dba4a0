"""TensorRT-LLM's statistics of its steps: KV cache, queue, time of a step, speculation."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from model_repository.contract.output import LibraryStats

logger = logging.getLogger(__name__)

_INTERVAL_S = 1.0
_TIMEOUT_S = 0.1
_CLOSE_TIMEOUT_S = 2.0


class IterationStats(LibraryStats, kw_only=True):
    """What TensorRT-LLM says of its steps. KV blocks that wait to be reused count as free.

    Source: cpp/tensorrt_llm/executor/jsonSerialization.cpp. Of 1.3: tensorrt_llm/executor/iteration_stats.py for ranks,
    tensorrt_llm/_torch/pyexecutor/kv_cache_stats.py for the blocks of the host.
    """

    num_kv_tokens_used: int = 0
    max_kv_tokens: int = 0
    num_draft_tokens: int = 0  # since the load
    num_accepted_tokens: int = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Read a row of statistics.

        With `enable_attention_dp` a step has a row for each rank, from rank 0 on, and each rank has requests and a KV
        cache of its own. The other rows repeat the use of rank 0's cache.
        """
        cache, batch = row.get("kvCacheStats") or {}, row.get("inflightBatchingStats") or {}
        if not row.get("attentionDpRank"):
            self._begin_step(row, cache)
        self.num_scheduled += batch.get("numScheduledRequests", 0)
        self.num_paused += batch.get("numPausedRequests", 0)
        self.num_kv_tokens_used += cache.get("usedNumBlocks", 0) * cache.get("tokensPerBlock", 0)
        self.max_kv_tokens += cache.get("maxNumBlocks", 0) * cache.get("tokensPerBlock", 0)

    def _begin_step(self, row: Mapping[str, Any], cache: Mapping[str, Any]) -> None:
        drafts = row.get("specDecodingStats") or {}
        self.is_known = True
        self.num_queued = row.get("numQueuedRequests", 0)
        self.num_scheduled = self.num_paused = self.num_kv_tokens_used = self.max_kv_tokens = 0
        self.num_steps += 1
        # With the overlap scheduler, iterLatencyMS spans two steps; 1.2 has no other time.
        self.step_s += row.get("hostStepTimeMS", row.get("iterLatencyMS", 0.0)) / 1e3
        self.num_reused_blocks = cache.get("reusedBlocks", self.num_reused_blocks)
        self.num_missed_blocks = cache.get("missedBlocks", self.num_missed_blocks)
        self.num_draft_tokens += drafts.get("numDraftTokens", 0)
        self.num_accepted_tokens += drafts.get("numAcceptedTokens", 0)
        if windows := row.get("kvCacheIterationStats"):  # by length of the attention window; not in each row
            self.num_host_blocks_used = sum(each["secondaryUsedNumBlocks"] for each in windows.values())
            self.max_host_blocks = sum(each["secondaryMaxNumBlocks"] for each in windows.values())


class StatsMonitor:
    """A thread that reads the statistics once a second.

    The thread of the requests must not read them: both of TensorRT-LLM's calls, `get_stats_async` too, stop the thread
    that makes them until there are statistics or the timeout is over, and an idle model has none.

    Source: GenerationExecutorProxy.aget_stats in tensorrt_llm/executor/proxy.py, from December 2025 on.
    """

    def __init__(self, llm: Any) -> None:
        self.stats = IterationStats()  # replaced, not changed
        self._llm = llm
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tensorrt-llm-statistics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, before the LLM shuts down. The wait is short: a call never returns if its worker has died."""
        self._is_closed.set()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        try:
            while not self._is_closed.wait(_INTERVAL_S):
                stats = replace(self.stats)
                for row in self._llm.get_stats(timeout=_TIMEOUT_S):
                    stats.add(row)
                self.stats = stats
        except Exception:
            logger.exception("TensorRT-LLM's statistics cannot be read: the use of the KV cache is unknown")
            self.stats = replace(self.stats, is_known=False)
