"""The engine's figures as Triton's metrics."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from model_repository.contract.output import DeviceState, LibraryStats
from model_repository.engine.metrics import DEVICE_FAMILIES, FAMILIES, EngineMetrics
from tests.fakes import stats


class FakeMetric:
    def __init__(self) -> None:
        self.value = 0.0
        self.calls: list[str] = []

    def set(self, value: float) -> None:
        self.value = value
        self.calls.append("set")

    def increment(self, value: float) -> None:
        assert value >= 0
        self.value += value
        self.calls.append("increment")


def test_a_counter_gets_the_difference_and_a_gauge_the_value() -> None:
    updates = [
        replace(stats(1), num_active=3, num_step_tokens=10),
        replace(stats(1), num_active=1, num_step_tokens=14),
    ]
    metrics = {family.name: FakeMetric() for family in FAMILIES}
    engine_metrics = EngineMetrics(lambda: updates.pop(0), list(metrics.values()))
    engine_metrics.update()
    engine_metrics.update()
    assert metrics["conch_engine_sequences_active"].value == 1
    assert metrics["conch_engine_tokens_total"].value == 14
    for family in FAMILIES:
        assert set(metrics[family.name].calls) == {"increment" if family.is_counter else "set"}
        assert family.name.endswith("_total") == family.is_counter


def test_an_unknown_use_of_the_kv_cache_is_not_a_number() -> None:
    metrics = {family.name: FakeMetric() for family in FAMILIES}
    unknown = replace(stats(1), num_kv_tokens_used=None, max_kv_tokens=None)
    EngineMetrics(lambda: unknown, list(metrics.values())).update()
    assert math.isnan(metrics["conch_engine_kv_tokens_used"].value)
    assert math.isnan(metrics["conch_engine_kv_tokens_max"].value)


@pytest.mark.parametrize("is_known", [True, False])
def test_the_state_of_a_library_is_not_a_number_while_it_is_unknown(is_known: bool) -> None:
    metrics = {family.name: FakeMetric() for family in FAMILIES}
    library = LibraryStats(is_known=is_known, num_queued=3, num_reused_blocks=5)
    EngineMetrics(lambda: replace(stats(1), library=library), list(metrics.values())).update()
    queued = metrics["conch_engine_library_queued"].value
    assert queued == 3 if is_known else math.isnan(queued)
    assert metrics["conch_engine_library_reused_blocks_total"].value == 5


def test_each_device_has_metrics_of_its_own() -> None:
    states = {"CUDA0": DeviceState(used_bytes=3, free_bytes=4), "CUDA1": DeviceState(used_bytes=5, free_bytes=6)}
    of_devices = {name: [FakeMetric() for _ in DEVICE_FAMILIES] for name in states}
    plain = [FakeMetric() for _ in FAMILIES]
    EngineMetrics(lambda: replace(stats(1), devices=states), plain, of_devices).update()
    assert [family.name for family in DEVICE_FAMILIES] == [
        "conch_engine_device_used_bytes",
        "conch_engine_device_free_bytes",
    ]
    values = {name: [metric.value for metric in metrics] for name, metrics in of_devices.items()}
    assert values == {"CUDA0": [3, 4], "CUDA1": [5, 6]}


def test_closing_ends_the_thread() -> None:
    metrics = EngineMetrics(lambda: stats(1), [FakeMetric() for _ in FAMILIES])
    metrics.start()
    metrics.close()
    assert not metrics._thread.is_alive()
