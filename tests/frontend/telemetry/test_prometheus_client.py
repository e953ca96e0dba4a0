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


@pytest.mark.parametrize("is_bulk", [False, True])
def test_a_bulk_histogram_counts_as_prometheus_client_does(is_bulk: bool) -> None:
    samples = []
    for kind in (Histogram, metrics.BulkHistogram):
        made = kind("x", "text", buckets=(1.0, 2.0), registry=CollectorRegistry())
        if is_bulk and isinstance(made, metrics.BulkHistogram):
            made.observe_all(VALUES)
        else:
            for value in VALUES:
                made.observe(value)
        samples.append([each for family in made.collect() for each in family.samples])
    assert samples[0] == samples[1]


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
