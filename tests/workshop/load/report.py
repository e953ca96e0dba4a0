"""The outcome as tables and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from tests.workshop.load.measures import Spread
from tests.workshop.load.outcome import PointOutcome, ScenarioOutcome
from tests.workshop.load.soak import SoakOutcome

HEADINGS = {
    "tokens_per_s": "tokens/s",
    "embeddings_per_s": "embeddings/s",
    "cpu_us_per_embedding": "server CPU us/embedding",
    "requests_per_s": "requests/s",
    "tokens_per_chunk": "tokens per chunk",
    "cpu_us_per_token": "server CPU us/token",
    "responses_per_s": "responses/s",
    "cpu_us_per_response": "server CPU us/response",
    "cpu_us_per_request": "server CPU us/request",
    "slowest_pace": "slowest stream's share of pace",
    "engine_call_ms": "engine alone over gRPC ms",
    "frontend_rss_mb": "frontend RSS MB",
    "ratio_to_peer": "rate to peer's",
    "cpu_ratio_to_peer": "CPU to peer's",
    "ttft_ratio_to_peer": "TTFT p50 to peer's",
    "cost_to_first": "CPU cost to first row",
}
_DISTRIBUTIONS = {
    "ttft_ms": "TTFT ms",
    "request_ms": "request ms",
    "chunk_gap_ms": "chunk gap ms",
    "added_itl_ms": "added ITL ms",
    "lateness_ms": "lateness ms",
    "added_token_ms": "added per token ms",
}


def heading(metric: str) -> str:
    """Return a metric's name for people."""
    if metric in HEADINGS:
        return HEADINGS[metric]
    name, _, percentile = metric.partition(".")
    return f"{_DISTRIBUTIONS[name]} {percentile}"


def number(value: float) -> str:
    """Return a number in three significant digits or all digits before the point."""
    if math.isnan(value):
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}" if abs(value) >= 0.01 else f"{value:.2f}"


def tables(outcome: ScenarioOutcome) -> Iterator[Table]:
    """Yield the scenario's table and, if CPU was measured, a table of CPU per token by process."""
    metrics = _shown(outcome)
    table = Table(title=outcome.scenario.title, title_justify="left")
    table.add_column("", no_wrap=True)
    for metric in metrics:
        table.add_column(heading(metric), justify="right")
    for point in outcome.points:
        table.add_row(point.point.label, *(_cell(point.metrics.get(metric)) for metric in metrics))
    yield table
    names = process_names(outcome.points)
    if names and "cpu_us_per_token" in outcome.scenario.metrics:
        by_process = Table()
        by_process.add_column("CPU us/token of", no_wrap=True)
        for name in (*names, "load generator"):
            by_process.add_column(name, justify="right")
        for point in outcome.points:
            shares = [number(point.median(f"cpu_us_per_token.{name}")) for name in names]
            by_process.add_row(point.point.label, *shares, number(point.median("generator_us_per_token")))
        yield by_process


def markdown(outcomes: Sequence[ScenarioOutcome]) -> str:
    """Return the tables for a document: medians alone, with the number of repeats in the title."""
    lines = []
    for outcome in outcomes:
        metrics = _shown(outcome)
        num_repeats = max((len(point.runs) for point in outcome.points), default=0)
        lines += ["", f"{outcome.scenario.title} (medians of {num_repeats})", ""]
        lines += [_row("", *map(heading, metrics)), _row(*["---"] * (len(metrics) + 1))]
        lines += [
            _row(point.point.label, *(number(point.median(metric)) for metric in metrics)) for point in outcome.points
        ]
    return "\n".join(lines[1:]) + "\n"


def process_names(points: Sequence[PointOutcome]) -> list[str]:
    """Return the names of the measured processes, in the order of a request's way."""
    found = {name for point in points for run in point.runs for name in run.cpu_s}
    order = ("serve", "frontend", "tritonserver", "tokenizer", "engine", "detokenizer")
    return [name for name in order if name in found] + sorted(found - set(order))


def verdicts(outcome: ScenarioOutcome) -> Iterator[str]:
    """Yield a line for every bound and for every kind of error."""
    for bound in outcome.scenario.bounds:
        value = outcome.value(bound)
        word = "reached" if bound.holds(value) else "MISSED"
        yield f"{word}: {bound.point}, {heading(bound.metric)} {number(value)}, {bound}"
    for error, number_of in outcome.errors().items():
        yield f"ERROR: {number_of} streams: {error}"


def soak_table(outcome: SoakOutcome) -> Table:
    """Return the memory of each process."""
    title = (
        f"Soak of {outcome.minutes:g} min at {outcome.rate_per_s:.1f} requests/s, half of "
        f"{outcome.capacity_tokens_per_s:,.0f} tokens/s: {outcome.num_sent} sent, {outcome.num_failed} failed"
    )
    growth = outcome.memory.growth_mb_per_hour()
    table = Table(
        "process", "PSS MB, first", "last", "growth MB/hour", "RSS MB, last", title=title, title_justify="left"
    )
    for name, pss in outcome.memory.pss_bytes.items():
        rss = outcome.memory.rss_bytes[name]
        row = (pss[0] / 1e6, pss[-1] / 1e6, growth.get(name, math.nan), rss[-1] / 1e6)
        table.add_row(name, *map(number, row))
    return table


def write_json(
    path: Path, machine: dict[str, Any], options: dict[str, Any], outcomes: Sequence[ScenarioOutcome]
) -> None:
    """Write everything; NaN becomes null."""
    content = {"machine": machine, "options": options, "scenarios": [outcome.to_dict() for outcome in outcomes]}
    path.write_text(json.dumps(_without_nan(content), allow_nan=False) + "\n")


def _shown(outcome: ScenarioOutcome) -> list[str]:
    return [name for name in outcome.scenario.metrics if any(name in point.metrics for point in outcome.points)]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    if spread.low == spread.high:
        return number(spread.median)
    return f"{number(spread.median)} ({number(spread.low)}-{number(spread.high)})"
