"""The engine's figures on Triton's metrics port, for monitoring without a frontend."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from model_repository.contract.output import EngineStats, LibraryStats
from model_repository.errors import StageError
from model_repository.metric_family import MetricFamily

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0  # each update is a message to Triton


class Metric(Protocol):
    """Triton's metric of one family."""

    def set(self, value: float) -> None: ...

    def increment(self, value: float) -> None: ...


def _gauge(name: str, meaning: str, value: Callable[[EngineStats], float]) -> MetricFamily:
    return MetricFamily(f"conch_engine_{name}", meaning, False, value)


def _counter(name: str, meaning: str, value: Callable[[EngineStats], float]) -> MetricFamily:
    return MetricFamily(f"conch_engine_{name}_total", meaning, True, value)


def _library_gauge(name: str, meaning: str, value: Callable[[LibraryStats], float]) -> MetricFamily:
    def known(stats: EngineStats) -> float:
        return value(stats.library) if stats.library.is_known else math.nan

    return _gauge(f"library_{name}", f"{meaning}; NaN without its statistics.", known)


def _or_nan(value: int | None) -> float:
    return math.nan if value is None else value


FAMILIES = (
    _gauge("sequences_active", "Sequences in prefill or decoding.", lambda stats: stats.num_active),
    _gauge("sequences_waiting", "Sequences in the queue.", lambda stats: stats.num_waiting),
    _gauge(
        "kv_tokens_used",
        "KV tokens of active sequences; NaN if the runtime does not know it.",
        lambda stats: _or_nan(stats.num_kv_tokens_used),
    ),
    _gauge(
        "kv_tokens_max",
        "KV tokens that fit in the KV cache; NaN if the runtime does not know it.",
        lambda stats: _or_nan(stats.max_kv_tokens),
    ),
    _gauge("max_step_sequences", "Largest number of sequences in one step.", lambda stats: stats.max_step_sequences),
    _gauge("adapter_bytes", "Bytes of LoRA adapters in memory.", lambda stats: stats.adapter_bytes),
    _gauge("step_age_seconds", "Age of the running step.", lambda stats: stats.step_age_ms / 1e3),
    _counter("steps", "Steps with tokens or embeddings.", lambda stats: stats.num_steps),
    _counter("tokens", "Tokens generated.", lambda stats: stats.num_step_tokens),
    _counter("finished", "Finished sequences.", lambda stats: stats.num_finished),
    _counter("cancelled", "Cancelled sequences.", lambda stats: stats.num_cancelled),
    _counter("images", "Images computed; not those that were found in the KV cache.", lambda stats: stats.num_images),
    _counter("image_tokens", "Tokens of these images.", lambda stats: stats.num_image_tokens),
    _counter("image_seconds", "Time spent on computing images.", lambda stats: stats.image_s),
    _counter("draft_tokens", "Tokens drafted by speculation.", lambda stats: stats.num_draft_tokens),
    _counter("accepted_tokens", "Drafted tokens that were right.", lambda stats: stats.num_accepted_tokens),
    _counter(
        "cancel_to_free_seconds",
        "Time from each cancel to free KV tokens, added up.",
        lambda stats: stats.cancel_to_free_ms / 1e3,
    ),
    _counter(
        "output_batches", "Output batches sent, to frontends and gRPC clients.", lambda stats: stats.num_output_batches
    ),
    _counter("output_items", "Token deltas and errors in those batches.", lambda stats: stats.num_output_items),
    # TensorRT-LLM's own figures, one read of its statistics each second.
    _library_gauge("queued", "Requests in the queue inside TensorRT-LLM", lambda library: library.num_queued),
    _library_gauge("scheduled", "Requests in TensorRT-LLM's last step", lambda library: library.num_scheduled),
    _library_gauge(
        "paused",
        "Requests that TensorRT-LLM has paused: others use their KV blocks, and it computes them again later",
        lambda library: library.num_paused,
    ),
    _library_gauge(
        "host_blocks_used",
        "Blocks of the KV cache in the machine's memory",
        lambda library: library.num_host_blocks_used,
    ),
    _library_gauge(
        "host_blocks_max",
        "Blocks of the KV cache that fit in the machine's memory; 0 before release 1.3",
        lambda library: library.max_host_blocks,
    ),
    _counter("library_steps", "Steps of TensorRT-LLM.", lambda stats: stats.library.num_steps),
    _counter("library_step_seconds", "Time of these steps, added up.", lambda stats: stats.library.step_s),
    _counter(
        "library_reused_blocks",
        "KV blocks of prompts that TensorRT-LLM found in its cache.",
        lambda stats: stats.library.num_reused_blocks,
    ),
    _counter(
        "library_missed_blocks",
        "KV blocks of prompts that it had to compute.",
        lambda stats: stats.library.num_missed_blocks,
    ),
)


class EngineMetrics:
    """A thread that copies an engine's figures to Triton's metrics.

    Args:
        metrics: Triton's, in the order of FAMILIES.
    """

    def __init__(self, stats: Callable[[], EngineStats], metrics: Sequence[Metric]) -> None:
        self._stats = stats
        self._metrics = metrics
        self._counted = [0.0] * len(metrics)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and wait for its end: later updates would fail in Triton."""
        self._is_closed.set()
        self._thread.join()

    def update(self) -> None:
        """Copy the current figures.

        Raises:
            StageError: the engine has stopped.
        """
        stats = self._stats()
        for index, (family, metric) in enumerate(zip(FAMILIES, self._metrics, strict=True)):
            value = family.value(stats)
            if family.is_counter:
                metric.increment(value - self._counted[index])
                self._counted[index] = value
            else:
                metric.set(value)

    def _run(self) -> None:
        while not self._is_closed.wait(INTERVAL_S):
            try:
                self.update()
            except StageError:  # requests get this error too
                continue
            except Exception:
                logger.exception("the engine's metrics are no longer updated")
                return
