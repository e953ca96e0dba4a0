"""The private names of prometheus_client, and its file format, have the meaning that the metrics need."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.mmap_dict import MmapedDict

from frontend.telemetry import metrics
from frontend.telemetry.definitions import METRICS, Kind

VALUES = (0.5, 1.0, 1.5, 2.0, 9.0)  # below, at and above the bounds


def test_what_a_distribution_observes_counts_as_in_prometheus_clients_histogram() -> None:
    histogram, bulk = (
        kind("x", "text", buckets=(1.0, 2.0), registry=CollectorRegistry())
        for kind in (Histogram, metrics.BulkHistogram)
    )
    distribution = metrics.Distribution(bulk, [], (1.0, 2.0))
    for value in VALUES:
        histogram.observe(value)
        distribution.observe(value)
        if value == 1.5:
            distribution.flush()
    distribution.add([1, 1, 0], 2.5)
    for value in (0.5, 2.0):
        histogram.observe(value)
    distribution.flush()
    counted, expected = ([each for family in kind.collect() for each in family.samples] for kind in (bulk, histogram))
    assert counted == expected


def test_a_full_file_of_a_worker_grows_before_prometheus_client_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(metrics.SHARED_FOLDER, str(tmp_path))
    counter = next(each for each in METRICS if each.kind is Kind.COUNTER)
    metrics._reserve_file(counter)
    path = tmp_path / f"counter_{os.getpid()}.db"
    size_bytes = path.stat().st_size
    num_values = 0
    with closing(MmapedDict(str(path))) as file:
        while path.stat().st_size == size_bytes:
            file.write_value(f"{num_values:01000}", 1.0, 0.0)
            num_values += 1
            metrics._reserve_file(counter)
    assert 0 < size_bytes - metrics._CHILD_BYTES - num_values * 1000 < 10_000  # the other bytes are numbers and heads
    assert path.stat().st_blocks * 512 >= path.stat().st_size  # no hole
