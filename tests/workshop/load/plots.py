"""Plots of the outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from tests.workshop.load.measures import Quantiles
from tests.workshop.load.outcome import PointOutcome, ScenarioOutcome
from tests.workshop.load.report import process_names
from tests.workshop.load.runs import Run
from tests.workshop.load.scenarios import OURS

matplotlib.use("svg")  # no display

_SIZE = (9.0, 4.0)  # inches
_DPI = 130


def write_plots(folder: Path, outcomes: Sequence[ScenarioOutcome], note: str = "") -> list[Path]:
    """Write the plots that the outcomes allow, with the note across each, and return their paths."""
    by_name = {outcome.scenario.name: outcome for outcome in outcomes if outcome.points}
    figures: dict[str, Figure] = {}
    if "unpaced" in by_name:
        figures["streams"] = _against_streams(by_name["unpaced"])
    if "offered-load" in by_name:
        figures["offered-load"] = _against_offered_load(by_name["offered-load"])
    if distributions := _distributions(by_name):
        figures["latency"] = distributions
    if ratios := _against_peers(outcomes):
        figures["peers"] = ratios
    if bars := _cpu_bars(outcomes):
        figures["cpu-by-process"] = bars
    paths = []
    for name, figure in figures.items():
        paths.append(folder / f"{name}.png")
        figure.text(0.5, 0.5, note, color="red", alpha=0.3, fontsize=20, rotation=15, ha="center", va="center")
        figure.savefig(paths[-1], dpi=_DPI, metadata={"Comment": note})
    return paths


def memory_plot(path: Path, times_min: Sequence[float], mb_by_process: Mapping[str, Sequence[float]]) -> None:
    """Plot the memory of each process of a soak."""
    figure, (axes,) = _figure("Memory during the soak", 1)
    for name, values in mb_by_process.items():
        axes.plot(times_min, values, label=name)
    _label(axes, "minutes", "RSS, MB")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    figure.savefig(path, dpi=_DPI)


def routing_plot(
    path: Path, first_token_s: Mapping[str, Sequence[float]], nums_requests: Mapping[str, Sequence[int]]
) -> None:
    """Plot the first tokens of the ways to choose a replica, and the requests of each replica."""
    figure, (left, right) = _figure("The choice of a replica, simulated", 2)
    shares = np.linspace(0, 1, 200)
    for name, times_s in first_token_s.items():
        left.plot(np.quantile(times_s, shares), shares, label=name)
        right.plot(np.sort(nums_requests[name])[::-1], label=name)
    left.set_xscale("log")
    _label(left, "first token, s", "share of the requests")
    _label(right, "replicas, by their requests", "requests")
    right.set_ylim(bottom=0)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(path, dpi=_DPI)


def _against_streams(outcome: ScenarioOutcome) -> Figure:
    figure, (left, right) = _figure("Unpaced synthetic engine: throughput and cost against streams", 2)
    streams = sorted({point.point.load.num_streams for point in outcome.points})
    for axes, metric, label in (
        (left, "tokens_per_s", "tokens/s"),
        (right, "cpu_us_per_token", "server CPU, us per token"),
    ):
        for server in dict.fromkeys(point.point.server for point in outcome.points):
            own = [point for point in outcome.points if point.point.server == server]
            _line(axes, [point.point.load.num_streams for point in own], own, metric, server)
        axes.legend(frameon=False)
        axes.set_xscale("log", base=2)
        axes.set_xticks(streams, [str(number) for number in streams])
        _label(axes, "streams", label)
        axes.set_ylim(bottom=0)
    return figure


def _against_offered_load(outcome: ScenarioOutcome) -> Figure:
    figure, (left, right) = _figure("Open loop, Poisson arrivals: throughput and latency against offered load", 2)
    offered = [(point.point.load.rate_per_s or 0) * point.point.load.num_tokens for point in outcome.points]
    left.plot(offered, offered, linestyle=":", color="gray", label="offered")
    _line(left, offered, outcome.points, "tokens_per_s", "served")
    left.legend(frameon=False)
    _label(left, "offered tokens/s", "served tokens/s")
    for metric, label in (
        ("ttft_ms.p50", "TTFT p50"),
        ("ttft_ms.p99", "TTFT p99"),
        ("added_itl_ms.p99", "added ITL p99"),
    ):
        _line(right, offered, outcome.points, metric, label)
    right.set_yscale("log")
    _plain_numbers(right.yaxis)
    right.legend(frameon=False)
    _label(right, "offered tokens/s", "ms")
    return figure


def _distributions(by_name: Mapping[str, ScenarioOutcome]) -> Figure | None:
    names = [name for name in ("unpaced", "paced", "one-stream", "offered-load") if name in by_name]
    if not names:
        return None
    figure, (left, right) = _figure("Latency: share of requests or tokens at or below", 2)
    for name in names:
        for point in _ends(by_name[name].points):
            label = f"{name}, {point.point.label}"
            _cumulative(left, point.runs, lambda run: run.result.ttft_ms, label)
            _cumulative(right, point.runs, lambda run: run.result.chunk_gap_ms, label)
    for axes, label in ((left, "time to first token, ms"), (right, "gap between chunks, ms")):
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis)
        _label(axes, label, "share")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def _cpu_bars(outcomes: Sequence[ScenarioOutcome]) -> Figure | None:
    shown = ("unpaced", "paced", "offered-load", "custom")
    rows = [
        (f"{outcome.scenario.name}\n{point.point.label}", point)
        for outcome in outcomes
        for point in outcome.points
        if outcome.scenario.name in shown and point.median("cpu_us_per_token") > 0
    ]
    if not rows:
        return None
    figure, (axes,) = _figure("Server CPU per token, by process", 1, height=1.2 + 0.5 * len(rows))
    labels, starts = [label for label, _ in rows], np.zeros(len(rows))
    for name in process_names([point for _, point in rows]):
        widths = np.nan_to_num([point.median(f"cpu_us_per_token.{name}") for _, point in rows])
        axes.barh(labels, widths, left=starts, label=name, height=0.7)
        starts += widths
    for row, total in enumerate(starts):
        axes.text(total, row, f" {total:.0f}", va="center", fontsize=8)
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=8)
    axes.margins(x=0.06)
    axes.set_xlabel("us per token")
    figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    return figure


def _against_peers(outcomes: Sequence[ScenarioOutcome]) -> Figure | None:
    rows = [
        (f"{outcome.scenario.name}, {point.point.label.removesuffix(OURS)}{point.point.setup.peer}", point)
        for outcome in outcomes
        for point in outcome.points
        if "ratio_to_peer" in point.metrics
    ]
    if not rows:
        return None
    figure, axes = _figure("Ours to the peer's", 2, height=1.2 + 0.25 * len(rows))
    for each, metric, label in (
        (axes[0], "ratio_to_peer", "tokens/s or requests/s (more is better)"),
        (axes[1], "cpu_ratio_to_peer", "server CPU (less is better)"),
    ):
        ratios = [point.median(metric) for _, point in rows]
        each.barh([name for name, _ in rows], np.nan_to_num(ratios), height=0.7)
        each.axvline(1, color="gray", linestyle=":")
        for row, ratio in enumerate(ratios):
            each.text(ratio, row, f" {ratio:.2f}", va="center", fontsize=8)
        each.invert_yaxis()
        each.margins(x=0.12)
        each.set_xlabel(label)
    axes[0].tick_params(axis="y", labelsize=8)
    axes[1].set_yticks([])
    return figure


def _ends(points: Sequence[PointOutcome]) -> Sequence[PointOutcome]:
    return [points[0], points[-1]] if len(points) > 1 else points


def _line(axes: Axes, xs: Sequence[float], points: Sequence[PointOutcome], metric: str, label: str) -> None:
    """Draw the medians with bars from the lowest to the highest."""
    spreads = [point.metrics.get(metric) for point in points]
    known = [(x, spread) for x, spread in zip(xs, spreads, strict=True) if spread is not None]
    medians = [spread.median for _, spread in known]
    below = [spread.median - spread.low for _, spread in known]
    above = [spread.high - spread.median for _, spread in known]
    axes.errorbar([x for x, _ in known], medians, yerr=[below, above], marker="o", capsize=3, label=label)


def _cumulative(axes: Axes, runs: Sequence[Run], quantiles_of: Callable[[Run], Quantiles], label: str) -> None:
    """Draw the distribution of the middle one of the runs."""
    found = sorted((quantiles_of(run) for run in runs), key=lambda quantiles: quantiles.at(50))
    points = found[len(found) // 2].points
    if points:
        values = np.maximum(points, 0.01)  # chunks of one read have a gap of 0
        axes.plot(values, np.linspace(0, 1, len(values)), label=label)


def _plain_numbers(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers, after its data is drawn."""
    low, high = axis.get_view_interval()
    num_decades = math.log10(high / low)
    per_decade = (1.0, 2.0, 5.0) if num_decades < 2 else (1.0, 3.0) if num_decades < 4 else (1.0,)
    axis.set_major_locator(LogLocator(subs=per_decade))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def _label(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(alpha=0.3)


def _figure(title: str, num_axes: int, height: float = _SIZE[1]) -> tuple[Figure, Sequence[Axes]]:
    figure = Figure(figsize=(_SIZE[0], height), layout="constrained")
    figure.suptitle(title, fontsize=11)
    return figure, [figure.add_subplot(1, num_axes, index + 1) for index in range(num_axes)]
