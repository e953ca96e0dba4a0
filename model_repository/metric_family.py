"""One metric of an engine, as its definition and Triton's Python backend both need it."""

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
    value: Callable[[EngineStats], float]  # of a counter: since the load
