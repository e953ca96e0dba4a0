"""The outcome of runs: medians over repeats by scenario and point, and their bounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tests.workshop.load.measures import Spread
from tests.workshop.load.runs import Run, costs_to_first
from tests.workshop.load.scenarios import OURS, Bound, Point, Scenario

_RATIOS = {
    "ratio_to_peer": "tokens_per_s",
    "cpu_ratio_to_peer": "cpu_us_per_token",
    "ttft_ratio_to_peer": "ttft_ms.p50",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PointOutcome:
    """The repeats of a point."""

    point: Point
    runs: Sequence[Run]
    metrics: Mapping[str, Spread]  # only those with a value

    def median(self, metric: str) -> float:
        """Return a metric's median; NaN without a value."""
        return self.metrics[metric].median if metric in self.metrics else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioOutcome:
    """The points of a scenario."""

    scenario: Scenario
    points: Sequence[PointOutcome]

    @classmethod
    def of(cls, scenario: Scenario, runs: Iterable[Run]) -> ScenarioOutcome:
        """Group runs by point. Points without runs are left out."""
        all_runs = list(runs)
        costs = costs_to_first(all_runs, scenario.points[0].label)
        points: list[PointOutcome] = []
        for point in scenario.points:
            own = [run for run in all_runs if run.point == point.label]
            if own:
                values = [run.metrics() | {"cost_to_first": costs[run.point, run.repeat]} for run in own]
                points.append(PointOutcome(point=point, runs=own, metrics=_spreads(values)))
        return cls(scenario=scenario, points=_compared_with_peer(points))

    @property
    def num_failed(self) -> int:
        """Streams with a wrong answer."""
        return sum(run.result.num_failed for point in self.points for run in point.runs)

    def errors(self) -> dict[str, int]:
        """Return the errors with their counts."""
        found: dict[str, int] = {}
        for point in self.points:
            for run in point.runs:
                for error, number in run.result.errors.items():
                    found[error] = found.get(error, 0) + number
        return found

    def value(self, bound: Bound) -> float:
        """Return the median for a bound."""
        found = [point.median(bound.metric) for point in self.points if point.point.label == bound.point]
        return found[0] if found else math.nan

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON, except that NaN is possible."""
        return {
            "name": self.scenario.name,
            "title": self.scenario.title,
            "points": [
                {
                    "label": outcome.point.label,
                    "load": asdict(outcome.point.load),
                    "setup": asdict(outcome.point.setup),
                    "server": outcome.point.server,
                    "metrics": {name: asdict(spread) for name, spread in outcome.metrics.items()},
                    "runs": [run.to_dict() for run in outcome.runs],
                }
                for outcome in self.points
            ],
            "bounds": [
                asdict(bound) | {"median": self.value(bound), "holds": bound.holds(self.value(bound))}
                for bound in self.scenario.bounds
            ],
        }


def _compared_with_peer(points: Sequence[PointOutcome]) -> list[PointOutcome]:
    """Add the ratios of medians to our points that the peer has too."""
    by_label = {outcome.point.label: outcome for outcome in points}
    compared = []
    for outcome in points:
        peer = by_label.get(outcome.point.label.removesuffix(OURS) + outcome.point.setup.peer)
        if outcome.point.server == OURS and peer is not None:
            ratios = {
                name: outcome.median(metric) / peer.median(metric)
                for name, metric in _RATIOS.items()
                if peer.median(metric) > 0
            }
            metrics = {name: Spread.of([ratio]) for name, ratio in ratios.items()}
            outcome = replace(outcome, metrics={**outcome.metrics, **metrics})
        compared.append(outcome)
    return compared


def _spreads(values: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    names = dict.fromkeys(name for each in values for name in each)
    found = {name: [each[name] for each in values if not math.isnan(each.get(name, math.nan))] for name in names}
    return {name: Spread.of(numbers) for name, numbers in found.items() if numbers}
