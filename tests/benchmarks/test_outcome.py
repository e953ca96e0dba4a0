"""Medians, verdicts, tables, JSON and plots of runs that never took place."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.benchmarks.accounting import Memory
from tests.benchmarks.load import Load, Target
from tests.benchmarks.load_result import LoadResult, summarize
from tests.benchmarks.measures import Quantiles, Spread
from tests.benchmarks.outcome import ScenarioOutcome
from tests.benchmarks.plots import write_plots
from tests.benchmarks.report import heading, number, tables, verdicts, write_json
from tests.benchmarks.runs import Run
from tests.benchmarks.scenarios import OURS, PEER, SUITE, Bound, Point, Scenario
from tests.benchmarks.stream_record import StreamRecord

SCENARIO = Scenario(
    name="streams",
    title="A title",
    points=tuple(Point(label=f"{n} streams", load=Load(num_streams=n)) for n in (1, 2)),
    metrics=("tokens_per_s", "cpu_us_per_token", "ttft_ms.p50", "cost_to_first"),
    bounds=(Bound(point="1 streams", metric="tokens_per_s", at_least=15),),
)


def result(num_tokens: int) -> LoadResult:
    """Return a result of so many tokens in one window of a second."""
    times = tuple(1.0 + index / num_tokens / 2 for index in range(num_tokens))
    record = StreamRecord(
        sent_s=0.9, ended_s=3.0, chunk_times_s=times, chunk_chars=(1,) * num_tokens, num_tokens=num_tokens
    )
    return summarize(Load(window_s=1.0), Target(url="http://a", model="m"), [record], 1.0)


def run(point: str, repeat: int, num_tokens: int, cpu_s: dict[str, float] | None = None) -> Run:
    """Return a run."""
    return Run(
        scenario="streams",
        point=point,
        repeat=repeat,
        result=result(num_tokens),
        window_s=1.0,
        cpu_s={"tritonserver": 1e-4, "frontend": 2e-4} if cpu_s is None else cpu_s,
        generator_cpu_s=1e-5,
        memory={"frontend": Memory(2, 5_000_000, 4_000_000, 3_000_000)},
        added_token_ms=Quantiles.of([]),
        engine_call_ms=math.nan,
    )


RUNS = [run("1 streams", 1, 10), run("2 streams", 1, 20), run("1 streams", 2, 30), run("2 streams", 2, 15)]


def test_medians_are_over_repeats_and_costs_are_compared_within_one() -> None:
    first, second = ScenarioOutcome.of(SCENARIO, RUNS).points
    assert first.metrics["tokens_per_s"] == Spread(20, 10, 30)
    assert first.metrics["cpu_us_per_token"] == Spread(20, 10, 30)
    assert first.median("cpu_us_per_token.frontend") == pytest.approx(2e2 * (1 / 10 + 1 / 30) / 2)
    assert second.metrics["cost_to_first"] == Spread(1.25, 0.5, 2.0)
    assert first.median("frontend_rss_mb") == 3.0


def test_a_metric_without_a_value_is_left_out() -> None:
    [first, _] = ScenarioOutcome.of(SCENARIO, RUNS).points
    assert "ratio_to_peer" not in first.metrics
    assert math.isnan(first.median("engine_call_ms"))
    blind = ScenarioOutcome.of(SCENARIO, [run("1 streams", 1, 10, cpu_s={})])
    assert "cpu_us_per_token" not in blind.points[0].metrics


def test_our_throughput_is_compared_with_the_peers_by_their_medians() -> None:
    points = tuple(Point(label=f"8 streams, {server}", load=Load(), server=server) for server in (OURS, PEER))
    runs = [run(points[0].label, n, tokens) for n, tokens in enumerate((10, 20, 90))]
    runs += [run(points[1].label, n, tokens) for n, tokens in enumerate((40, 5, 10))]
    ours, peer = ScenarioOutcome.of(replace(SCENARIO, points=points), runs).points
    assert ours.median("ratio_to_peer") == 2
    assert "ratio_to_peer" not in peer.metrics


@pytest.mark.parametrize(("at_least", "word"), [(15.0, "reached"), (25.0, "MISSED")])
def test_a_bound_is_held_against_the_median(at_least: float, word: str) -> None:
    bound = Bound(point="1 streams", metric="tokens_per_s", at_least=at_least)
    [line] = verdicts(ScenarioOutcome.of(replace(SCENARIO, bounds=(bound,)), RUNS))
    assert line == f"{word}: 1 streams, tokens/s 20.0, at least {at_least:g}"


def test_a_bound_without_a_value_is_missed() -> None:
    bound = Bound(point="no such", metric="tokens_per_s", at_most=1)
    assert not bound.holds(ScenarioOutcome.of(SCENARIO, RUNS).value(bound))


def test_every_bound_and_metric_of_the_suite_is_of_something_that_there_is() -> None:
    known = RUNS[0].metrics().keys() | {"ratio_to_peer", "cost_to_first"}
    for scenario in SUITE:
        labels = [point.label for point in scenario.points]
        assert len(set(labels)) == len(labels)
        for bound in scenario.bounds:
            assert bound.point in labels
            assert bound.metric in scenario.metrics
        for metric in scenario.metrics:
            assert metric in known
            assert heading(metric)


def test_the_table_has_a_row_for_each_point_with_median_and_extremes() -> None:
    console = Console(width=160)
    with console.capture() as captured:
        for table in tables(ScenarioOutcome.of(SCENARIO, RUNS)):
            console.print(table)
    text = captured.get()
    assert "20.0 (10.0-30.0)" in text
    assert text.index("frontend") < text.index("tritonserver") < text.index("load generator")
    assert text.count("2 streams") == 2


@pytest.mark.parametrize(
    ("value", "text"), [(12345.6, "12,346"), (99.94, "99.9"), (0.12345, "0.123"), (0.0, "0.00"), (math.nan, "-")]
)
def test_numbers_have_three_digits_or_all_before_the_point(value: float, text: str) -> None:
    assert number(value) == text


def test_the_json_has_everything_and_no_number_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_json(path, {"num_cores": 2}, {"repeat": 2}, [ScenarioOutcome.of(SCENARIO, RUNS)])
    content = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert content["machine"] == {"num_cores": 2}
    [scenario] = content["scenarios"]
    point = scenario["points"][0]
    assert point["metrics"]["tokens_per_s"] == {"median": 20, "low": 10, "high": 30}
    assert point["load"]["num_streams"] == 1
    assert [each["repeat"] for each in point["runs"]] == [1, 2]
    assert point["runs"][0]["cpu_s"] == {"tritonserver": 1e-4, "frontend": 2e-4}
    assert point["runs"][0]["engine_call_ms"] is None
    assert scenario["bounds"][0]["holds"] is True


def test_plots_are_written_for_what_there_is(tmp_path: Path) -> None:
    paths = write_plots(tmp_path, [ScenarioOutcome.of(SCENARIO, RUNS)])
    assert [path.name for path in paths] == ["streams.png", "cpu-by-process.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
