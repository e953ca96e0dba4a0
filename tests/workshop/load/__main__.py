"""The benchmarks: `python -m tests.workshop.load --help`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from tests.workshop.load.machine import describe_machine, summary_line
from tests.workshop.load.options import Options, read_options
from tests.workshop.load.outcome import ScenarioOutcome
from tests.workshop.load.plots import memory_plot, write_plots
from tests.workshop.load.report import markdown, soak_table, tables, verdicts, write_json
from tests.workshop.load.runs import Run, run_points
from tests.workshop.load.scenarios import OURS, Setup, setups_of
from tests.workshop.load.servers import Server, ServerFactory, StartError
from tests.workshop.load.soak import SETUP, soak

_WIDTH_ELSEWHERE = 160  # characters, where standard output is no terminal


def main() -> int:
    """Run the command line; return 1 after a failed start or a wrong answer."""
    options = read_options()
    console = _console()
    options.output.mkdir(parents=True, exist_ok=True)
    log_path = options.output / "servers.log"
    log_path.write_text("")
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as state_dir:
            factory = ServerFactory(Path(state_dir), log_path, options.num_threads)
            if options.soak_minutes is not None:
                return _soak(options.soak_minutes, options.output, factory, console)
            return _suite(options, factory, console)
    except (StartError, subprocess.CalledProcessError) as exc:
        console.print(f"error: {exc}", markup=False)
        console.print(f"The servers' log: {log_path}", markup=False)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130


def _suite(options: Options, factory: ServerFactory, console: Console) -> int:
    machine = describe_machine()
    console.print(summary_line(machine), markup=False)
    given: dict[str, object] = {"repeat": options.num_repeats, "threads": options.num_threads}
    if options.external is not None:
        given |= {"url": options.external.url, "model": options.external.model}
        console.print(f"{options.external.url} runs elsewhere: its CPU and memory are not measured", markup=False)
    outcomes = []
    for outcome in _outcomes(options, factory, console):
        outcomes.append(outcome)
        _show(outcome, console)
    results = options.output / "results.json"
    write_json(results, machine, given, outcomes)
    note = "--quick: too short for its figures to mean anything" if options.is_quick else ""
    console.print(note, markup=False)
    tables_path = options.output / "tables.md"
    tables_path.write_text(markdown(outcomes))
    for path in (results, tables_path, *write_plots(options.output, outcomes, note)):
        console.print(f"wrote {path}", markup=False)
    return 1 if any(outcome.num_failed or not outcome.points for outcome in outcomes) else 0


def _outcomes(options: Options, factory: ServerFactory, console: Console) -> Iterator[ScenarioOutcome]:
    """Start each setup once and run all points on it; yield a scenario when all its points are done."""
    setups = setups_of(options.scenarios)
    runs: dict[str, list[Run]] = {scenario.name: [] for scenario in options.scenarios}
    for number, setup in enumerate(setups, 1):
        with ExitStack() as stack:
            servers: dict[str, Server] = {}
            try:
                servers = stack.enter_context(_running(options, factory, setup))
            except ModuleNotFoundError as exc:
                names = [each.name for each in options.scenarios if any(point.setup == setup for point in each.points)]
                console.print(f"left out: {', '.join(names)}: {exc}", markup=False)
            for scenario in options.scenarios:
                points = [point for point in scenario.points if point.setup == setup and point.server in servers]
                num_repeats = min(options.num_repeats, scenario.max_repeats)
                for run in run_points(scenario.name, points, servers, num_repeats):
                    _print_run(run, console)
                    runs[scenario.name].append(run)
        to_come = set(setups[number:])
        for scenario in options.scenarios:
            own = [point.setup for point in scenario.points]
            if setup in own and not to_come.intersection(own):
                yield ScenarioOutcome.of(scenario, runs[scenario.name])


@contextmanager
def _running(options: Options, factory: ServerFactory, setup: Setup) -> Iterator[dict[str, Server]]:
    if options.external is not None:
        yield {OURS: Server(target=options.external)}
    else:
        with factory.running(setup) as servers:
            yield servers


def _console() -> Console:
    """Return the console. In a file or a pipe, tables can be wide."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=_WIDTH_ELSEWHERE)


def _print_run(run: Run, console: Console) -> None:
    failed = f", {run.result.num_failed} of {run.result.num_sent} FAILED" if run.result.num_failed else ""
    speed = f"{run.metrics()['tokens_per_s']:,.0f} tokens/s"
    console.print(f"{run.scenario}: {run.point}, repeat {run.repeat}: {speed}{failed}", markup=False)


def _show(outcome: ScenarioOutcome, console: Console) -> None:
    console.print()
    for table in tables(outcome):
        console.print(table)
    for line in verdicts(outcome):
        console.print(line, markup=False)
    console.print()


def _soak(minutes: float, output: Path, factory: ServerFactory, console: Console) -> int:
    machine = describe_machine()
    console.print(summary_line(machine), markup=False)
    with factory.running(SETUP) as servers:
        outcome = soak(servers[OURS], minutes, lambda line: console.print(line, markup=False))
    console.print(soak_table(outcome))
    for error, number in outcome.errors.items():
        console.print(f"ERROR: {number} streams: {error}", markup=False)
    content = {"machine": machine, "growth_mb_per_hour": outcome.memory.growth_mb_per_hour(), **asdict(outcome)}
    (output / "soak.json").write_text(json.dumps(content, indent=1) + "\n")
    megabytes = {name: [value / 1e6 for value in values] for name, values in outcome.memory.rss_bytes.items()}
    memory_plot(output / "soak.png", [time_s / 60 for time_s in outcome.memory.times_s], megabytes)
    console.print(f"wrote {output / 'soak.json'} and {output / 'soak.png'}", markup=False)
    return 1 if outcome.num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
