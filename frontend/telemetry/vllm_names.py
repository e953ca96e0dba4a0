"""Copies of metrics under vLLM's names, for dashboards and autoscalers. They are made for each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from frontend.telemetry.definitions import METRICS

_NAMES = {metric.name.removesuffix("_total"): metric.vllm for metric in METRICS if metric.vllm}
_REASONS = {"cancelled": "abort"}  # ours to vLLM's


class VllmNames(Collector):
    """The metrics of another collector and their copies.

    Args:
        collector: such as a registry.
    """

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterator[Family]:
        """Yield each family and its copies."""
        for family in self._collector.collect():
            yield family
            for name in _NAMES.get(family.name, ()):
                yield _renamed(family, name.removesuffix("_total"))


def _renamed(family: Family, name: str) -> Family:
    copy = Family(name, family.documentation, family.type)
    copy.samples = list(_samples(family.samples, family.name, name))
    return copy


def _samples(samples: Iterable[Sample], old: str, new: str) -> Iterator[Sample]:
    for sample in samples:
        yield sample._replace(name=new + sample.name.removeprefix(old), labels=_labels(sample.labels))


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return vLLM's labels. Our label `triton` stays: it distinguishes the engines of a model."""
    ours = dict(labels)
    renamed = {"model_name": ours.pop("model"), "engine": "0"}
    if "finish_reason" in ours:
        reason = ours.pop("finish_reason")
        renamed["finished_reason"] = _REASONS.get(reason, reason)
    if "code" in ours:
        renamed["reason"] = ours.pop("code")
    return renamed | ours
