"""The metrics of an engine, each declared in the annotation of the statistic that it shows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric; its label is the model's id."""

    name: str
    meaning: str
    is_counter: bool  # counts since the load


def gauge(name: str, meaning: str) -> MetricFamily:
    return MetricFamily(f"conch_engine_{name}", meaning, False)


def counter(name: str, meaning: str) -> MetricFamily:
    return MetricFamily(f"conch_engine_{name}_total", meaning, True)


def library_gauge(name: str, meaning: str) -> MetricFamily:
    return gauge(f"library_{name}", f"{meaning}; NaN without its statistics.")
