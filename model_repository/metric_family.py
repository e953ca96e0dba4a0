"""One metric of an engine, for its definition and for Triton's Python backend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from model_repository.contract.output import EngineStats


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric; its label is the model's id."""

    name: str
    meaning: str
    is_counter: bool
    value: Callable[[EngineStats], float]  # a counter counts since the load
