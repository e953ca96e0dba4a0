"""The use of the KV cache, from TensorRT-LLM's statistics of its steps."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

logger = logging.getLogger(__name__)

_INTERVAL_S = 1.0
_TIMEOUT_S = 0.1
_CLOSE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class KvCacheUse:
    """The tokens in the blocks of the KV cache; blocks that wait to be reused count as free."""

    num_tokens_used: int
    max_tokens: int

    @classmethod
    def of(cls, stats: Mapping[str, Any]) -> Self | None:
        """Read the statistics of a step; None: the statistics have no part for the cache."""
        cache = stats.get("kvCacheStats")
        if not cache:
            return None
        block_size = int(cache["tokensPerBlock"])
        return cls(int(cache["usedNumBlocks"]) * block_size, int(cache["maxNumBlocks"]) * block_size)


class KvCacheMonitor:
    """A thread that reads the statistics once a second, and keeps the last ones.

    The thread of the requests must not read them: both of TensorRT-LLM's calls, `get_stats_async` too, stop the thread
    that makes them until there are statistics or the timeout is over, and an idle model has none.

    Source: GenerationExecutorProxy.aget_stats in tensorrt_llm/executor/proxy.py, from December 2025 on.
    """

    def __init__(self, llm: Any) -> None:
        self.use: KvCacheUse | None = None  # after the last known step
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
                for stats in self._llm.get_stats(timeout=_TIMEOUT_S):
                    self.use = KvCacheUse.of(stats) or self.use
        except Exception:
            logger.exception("TensorRT-LLM's statistics cannot be read: the use of the KV cache is unknown")
            self.use = None
