"""The engine's figures as metrics of Triton's own, for whoever watches Triton without a frontend."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from model_repository.contract.output import EngineStats
from model_repository.errors import StageError
from model_repository.metric_family import MetricFamily

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0  # each update is a message to Triton


class Metric(Protocol):
    """What Triton makes of a family."""

    def set(self, value: float) -> None:
        """Set a gauge."""

    def increment(self, value: float) -> None:
        """Add to a counter."""


def _gauge(name: str, meaning: str, value: Callable[[EngineStats], float]) -> MetricFamily:
    return MetricFamily(f"conch_engine_{name}", meaning, False, value)


def _counter(name: str, meaning: str, value: Callable[[EngineStats], float]) -> MetricFamily:
    return MetricFamily(f"conch_engine_{name}_total", meaning, True, value)


FAMILIES = (
    _gauge("sequences_active", "Sequences in prefill or decoding.", lambda stats: stats.num_active),
    _gauge("sequences_waiting", "Sequences in the queue.", lambda stats: stats.num_waiting),
    _gauge("kv_cells_used", "KV cache cells of active sequences.", lambda stats: stats.num_cells_used),
    _gauge("kv_cells", "KV cache cells.", lambda stats: stats.num_cells),
    _gauge(
        "max_step_sequences", "The most sequences that a step gave a token.", lambda stats: stats.max_step_sequences
    ),
    _gauge("adapter_bytes", "Bytes of LoRA adapters in memory.", lambda stats: stats.adapter_bytes),
    _gauge("step_age_seconds", "How long the step in progress runs.", lambda stats: stats.step_age_ms / 1e3),
    _counter("steps", "Steps.", lambda stats: stats.num_steps),
    _counter("tokens", "Tokens drawn.", lambda stats: stats.num_step_tokens),
    _counter("finished", "Sequences that finished.", lambda stats: stats.num_finished),
    _counter("cancelled", "Sequences that were cancelled.", lambda stats: stats.num_cancelled),
    _counter("cancel_to_free_seconds", "From cancels to free cells.", lambda stats: stats.cancel_to_free_ms / 1e3),
    _counter(
        "output_batches", "Output batches sent, to frontends and gRPC clients.", lambda stats: stats.num_output_batches
    ),
    _counter("output_items", "Token deltas and errors in those batches.", lambda stats: stats.num_output_items),
)


class EngineMetrics:
    """Tells Triton's metrics what an engine says of itself, from a thread of its own.

    Args:
        stats: of the engine.
        metrics: Triton's, in the order of FAMILIES.
    """

    def __init__(self, stats: Callable[[], EngineStats], metrics: Sequence[Metric]) -> None:
        self._stats = stats
        self._metrics = metrics
        self._told = [0.0] * len(metrics)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and wait until it has: after it Triton takes no more."""
        self._is_closed.set()
        self._thread.join()

    def update(self) -> None:
        """Tell what the engine is doing now.

        Raises:
            StageError: it does nothing any more.
        """
        stats = self._stats()
        for index, (family, metric) in enumerate(zip(FAMILIES, self._metrics, strict=True)):
            value = family.value(stats)
            if family.is_counter:
                metric.increment(value - self._told[index])
                self._told[index] = value
            else:
                metric.set(value)

    def _run(self) -> None:
        while not self._is_closed.wait(INTERVAL_S):
            try:
                self.update()
            except StageError:  # which a request would be told, too
                continue
            except Exception:
                logger.exception("the engine's metrics are not told any more")
                return
