"""The frontend's Prometheus metrics. Several workers share a folder of prometheus_client."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from frontend.telemetry.definitions import METRICS, Kind, Metric

# Otherwise each counter and histogram has one more series, with its creation time.
disable_created_metrics()  # type: ignore[no-untyped-call]

logger = logging.getLogger(__name__)

# The variable with the shared folder. prometheus_client reads it when it is imported.
SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_FILE_BYTES = 1 << 18  # of a worker and a kind of metric at first, for some 1,300 series
_CHILD_BYTES = 1 << 16  # more than the series of one histogram with given labels

_VLLM_NAMES = {metric.name.removesuffix("_total"): metric.vllm for metric in METRICS if metric.vllm}
_VLLM_REASONS = {"cancelled": "abort"}  # ours to vLLM's


def forget_worker(pid: int | None) -> None:
    """Remove the gauges of a dead worker from the shared folder. Its counters stay."""
    mark_process_dead(pid, os.environ[SHARED_FOLDER])  # type: ignore[no-untyped-call]


class Sum:
    """A counter or a gauge. Additions count at the next flush: prometheus_client takes a lock for each number."""

    __slots__ = ("_added", "_changed", "_exported")

    def __init__(self, exported: Any, changed: list[Sum | Distribution]) -> None:
        self._exported, self._changed = exported, changed
        self._added = 0.0

    def inc(self, amount: float = 1) -> None:
        """Add to it."""
        if not self._added:
            self._changed.append(self)
        self._added += amount

    def set(self, value: float) -> None:
        """Set a gauge, which nothing is added to."""
        self._exported.set(value)

    def flush(self) -> None:
        """Count the additions."""
        self._exported.inc(self._added)
        self._added = 0


class Distribution:
    """A histogram. Observations count at the next flush."""

    __slots__ = ("_bounds", "_changed", "_counts", "_exported", "_sum")

    def __init__(self, exported: Any, changed: list[Sum | Distribution], bounds: Sequence[float]) -> None:
        self._exported, self._changed, self._bounds = exported, changed, bounds
        self._counts: list[int] = []
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Add an observation."""
        counts = self._counts or self._begun()
        counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add observations that are counted.

        Args:
            counts: by bucket, not cumulative; the last one is for values above all bounds.
            total: the sum of the observed values.
        """
        self._counts = [old + new for old, new in zip(self._begun(), counts, strict=True)]
        self._sum += total

    def _begun(self) -> list[int]:
        if not self._counts:
            self._counts = [0] * (len(self._bounds) + 1)
            self._changed.append(self)
        return self._counts

    def flush(self) -> None:
        """Count the observations."""
        self._exported.add(self._counts, self._sum)
        self._counts, self._sum = [], 0.0


class BulkHistogram(Histogram):
    """A histogram for many observations at once. prometheus_client has public names only for single ones."""

    def add(self, counts: Sequence[int], total: float) -> None:
        """Add observations; see Distribution."""
        for bucket, count in zip(self._buckets, counts, strict=True):
            if count:
                bucket.inc(count)
        self._sum.inc(total)


class Metrics:
    """The metrics of one process. They count when they are flushed."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._families = {
            metric.name: _unless_full(metric, partial(_family, metric, self._registry)) for metric in METRICS
        }
        self._series: dict[tuple[str, ...], Any] = {}
        self._changed: list[Sum | Distribution] = []
        self._is_shared = SHARED_FOLDER in os.environ
        self._is_scheduled = False

    def series(self, metric: Metric, *labels: str) -> Any:
        """Return the counter, gauge or histogram with these labels; it is exported from now on."""
        key = (metric.name, *labels)
        series = self._series.get(key)
        if series is None:
            family = self._families[metric.name]
            exported = _unless_full(metric, lambda: family.labels(*labels) if labels else family)
            if metric.kind is Kind.HISTOGRAM:
                series = Distribution(exported, self._changed, metric.buckets)
            else:
                series = Sum(exported, self._changed)
            self._series[key] = series
        return series

    def flush(self) -> None:
        """Count all additions and observations since the last flush."""
        self._is_scheduled = False
        for series in self._changed:
            series.flush()
        self._changed.clear()

    def flush_soon(self) -> None:
        """Count a worker's numbers after this turn of the event loop, in the folder that any worker exports."""
        if self._is_shared and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def exposition(self, accept: str, *, has_vllm_names: bool) -> tuple[bytes, str]:
        """Return the metrics of all workers for Prometheus, and their content type. It may read many files.

        Args:
            accept: the header of the request.
            has_vllm_names: add copies under vLLM's names.
        """
        registry = self._registry
        if self._is_shared:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        encode, content_type = choose_encoder(accept)
        families = CollectorRegistry()
        families.register(VllmNames(registry) if has_vllm_names else registry)
        return encode(families), content_type


class _Nowhere:
    """Takes the place of a metric that cannot be counted."""

    def labels(self, *values: str) -> _Nowhere:
        return self

    def inc(self, *arguments: object) -> None: ...

    set = add = inc


def _unless_full(metric: Metric, make: Callable[[], Any]) -> Any:
    """Return what a function makes, or, on a full disk, its place-holder: no answer depends on metrics."""
    try:
        _reserve_file(metric)
        return make()
    except OSError as exc:
        logger.warning("%s is not counted: %s", metric.name, exc)
        return _Nowhere()


def _reserve_file(metric: Metric) -> None:
    """Have room on the disk for the next values in the worker's file: on a full disk they would kill the worker.

    Raises:
        OSError: the disk is full, or the folder cannot be made.
    """
    folder = os.environ.get(SHARED_FOLDER)
    if folder is None:
        return
    kind = f"gauge_{metric.gauge_mode}" if metric.kind is Kind.GAUGE else metric.kind.value
    path = Path(folder, f"{kind}_{os.getpid()}.db")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        used_bytes = int.from_bytes(os.pread(file.fileno(), 4, 0), sys.byteorder)  # its header
        if size_bytes and used_bytes + _CHILD_BYTES <= size_bytes:
            return
        try:
            # prometheus_client doubles a file too, without blocks of the disk.
            os.posix_fallocate(file.fileno(), 0, 2 * size_bytes or _FILE_BYTES)
        except OSError as exc:
            os.truncate(path, size_bytes)
            if not size_bytes:
                path.unlink()
            raise OSError(exc.errno, exc.strerror, str(path)) from exc


def _family(metric: Metric, registry: CollectorRegistry) -> Any:
    arguments: dict[str, Any] = {"labelnames": metric.labels, "registry": registry}
    match metric.kind:
        case Kind.COUNTER:
            return Counter(metric.name, metric.meaning, **arguments)
        case Kind.GAUGE:
            return Gauge(metric.name, metric.meaning, multiprocess_mode=metric.gauge_mode, **arguments)
        case Kind.HISTOGRAM:
            return BulkHistogram(metric.name, metric.meaning, buckets=metric.buckets, **arguments)


class VllmNames(Collector):
    """The metrics of another collector, and their copies under vLLM's names. They are made for each scrape.

    Args:
        collector: such as a registry.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterator[Family]:
        """Yield each family and its copies."""
        for family in self._collector.collect():
            yield family
            for name in _VLLM_NAMES.get(family.name, ()):
                yield _renamed(family, name.removesuffix("_total"))


def _renamed(family: Family, name: str) -> Family:
    copy = Family(name, family.documentation, family.type)
    copy.samples = [
        sample._replace(name=name + sample.name.removeprefix(family.name), labels=_labels(sample.labels))
        for sample in family.samples
    ]
    return copy


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return vLLM's labels. Our label `triton` stays: it distinguishes the engines of a model."""
    ours = dict(labels)
    renamed = {"model_name": ours.pop("model"), "engine": "0"}
    if "finish_reason" in ours:
        reason = ours.pop("finish_reason")
        renamed["finished_reason"] = _VLLM_REASONS.get(reason, reason)
    if "code" in ours:
        renamed["reason"] = ours.pop("code")
    return renamed | ours
