"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from pathlib import Path

from model_repository.system.cores import num_cores
from tests.workshop.load.load import Load, Target
from tests.workshop.load.scenarios import SUITE, Scenario, Setup, custom, quick

_NUM_REPEATS = 5
_DESCRIPTION = """\
Measures the cost of serving around the engine: starts and ends the servers, prints tables, and writes them as Markdown
and JSON, with plots.
Without options the whole suite runs, in about 70 minutes on two cores.

Peers run in turns with our server: llama.cpp's own server beside the CPU engine, and NVIDIA Dynamo with its mock engine
beside the synthetic engine. Dynamo is installed by pip into .conch/dynamo; where that fails, its rows are left out.
"""
_EPILOG = """\
scenarios: {names}

An option of a custom load (--streams and below), or --url, replaces the suite:
  python -m tests.workshop.load --streams 128 --output-tokens 400
  python -m tests.workshop.load --rate 50 --itl-ms 20 --output-tokens 100
  python -m tests.workshop.load --url http://127.0.0.1:8000 --model demo --streams 8
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line."""

    scenarios: tuple[Scenario, ...]
    num_repeats: int
    output: Path
    num_threads: int
    external: Target | None  # a server that runs elsewhere
    soak_minutes: float | None
    is_quick: bool  # a trial of the benchmark, too short for its figures to mean anything


def read_options(arguments: list[str] | None = None) -> Options:
    """Read the command line. A wrong one ends the program with status 2."""
    parser = _make_parser()
    given = parser.parse_args(arguments)
    own = {name: value for name, value in vars(given).items() if name in _LOAD_OPTIONS}
    if (own or given.url) and (given.scenario or given.soak or given.quick):
        parser.error("--scenario, --soak and --quick go without --url and without the options of a custom load")
    if given.soak and (given.scenario or given.quick or given.repeat):
        parser.error("--soak goes without --scenario, --quick and --repeat")
    if {"num_streams", "rate_per_s"} <= own.keys():
        parser.error("--streams and --rate: a load is either a closed loop or an open one")
    if bool(given.url) != bool(given.model):
        parser.error("--url and --model go together")
    if given.url and "runtime" in own:
        parser.error("--runtime goes without --url, because no server is started here")
    for name in ("repeat", "threads", "soak"):
        if (value := getattr(given, name)) is not None and value <= 0:
            parser.error(f"--{name}={value}: must be above 0")
    try:
        external = Target(url=given.url, model=given.model) if given.url else None
        scenarios = [_custom(own)] if own or external else _chosen(parser, given.scenario)
    except ValueError as exc:
        parser.error(str(exc))
    return Options(
        scenarios=tuple(quick(scenarios) if given.quick else scenarios),
        num_repeats=given.repeat or _NUM_REPEATS,
        output=given.output,
        num_threads=given.threads,
        external=external,
        soak_minutes=given.soak,
        is_quick=given.quick,
    )


_LOAD_OPTIONS = frozenset(field.name for field in fields(Load)) | {"runtime"}


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.workshop.load",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(names=", ".join(scenario.name for scenario in SUITE)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scenario", action="append", metavar="NAME", help="run only this scenario; repeatable")
    parser.add_argument(
        "--repeat", type=int, metavar="N", help=f"runs of each point ({_NUM_REPEATS}; fewer for some scenarios)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a trial of the benchmark, too short for its figures to mean anything"
    )
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="instead: half load for MINUTES, with the memory")
    parser.add_argument(
        "--output", type=Path, default=Path("bench-results"), metavar="DIR", help="for results (%(default)s)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=num_cores(),
        metavar="N",
        help="of the CPU engine and of llama.cpp's server (%(default)s, the cores)",
    )
    other = parser.add_argument_group("a running server: its CPU and memory are not measured")
    other.add_argument("--url", help="such as http://127.0.0.1:8000")
    other.add_argument("--model", help="the model of its requests")
    _add_load_options(parser.add_argument_group("a custom load"))
    return parser


def _add_load_options(group: argparse._ArgumentGroup) -> None:
    def add(flag: str, dest: str, kind: type, text: str) -> None:
        group.add_argument(flag, dest=dest, type=kind, default=argparse.SUPPRESS, metavar="N", help=text)

    add("--streams", "num_streams", int, "closed loop: requests at the same time (64)")
    add("--rate", "rate_per_s", float, "open loop: requests a second, at random times")
    add("--output-tokens", "num_tokens", int, "of each completion (200)")
    add("--prompt-words", "prompt_words", int, "of each prompt (16); a word is a token or two")
    add("--itl-ms", "itl_ms", float, "the engine's pace: of the started engine, or the nominal one of a running server")
    add("--warmup-s", "warmup_s", float, "before the measured window (0.5)")
    add("--window-s", "window_s", float, "the measured window (3)")
    group.add_argument(
        "--api",
        choices=("chat/completions", "completions", "responses", "messages"),
        default=argparse.SUPPRESS,
        help="the endpoint, behind /v1/ (chat/completions)",
    )
    group.add_argument(
        "--may-stop",
        dest="ignores_eos",
        action="store_false",
        default=argparse.SUPPRESS,
        help="send no ignore_eos, which is not in OpenAI's API; completions may be shorter",
    )
    group.add_argument(
        "--runtime",
        choices=("synthetic", "llama_cpp"),
        default=argparse.SUPPRESS,
        help="of the started engine (synthetic); llama_cpp runs the demo model",
    )


def _custom(own: dict[str, object]) -> Scenario:
    runtime = own.pop("runtime", "synthetic")
    load = Load(**own)  # type: ignore[arg-type]  # argparse has converted each value
    if runtime == "llama_cpp":
        if load.itl_ms is not None:
            raise ValueError("itl_ms: the CPU engine has no pace")
        return custom(load, Setup(runtime="llama_cpp", max_sequences=16))
    return custom(load, Setup(itl_ms=load.itl_ms or 0, max_sequences=max(320, load.num_streams)))


def _chosen(parser: argparse.ArgumentParser, names: list[str] | None) -> list[Scenario]:
    by_name = {scenario.name: scenario for scenario in SUITE}
    for name in names or ():
        if name not in by_name:
            parser.error(f"--scenario {name}: expected one of {', '.join(by_name)}")
    return [scenario for scenario in SUITE if not names or scenario.name in names]
