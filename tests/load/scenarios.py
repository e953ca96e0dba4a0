"""The suite of scenarios, with their setups and bounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from tests.load.load import Load

OURS = "conch"
PEER = "llama.cpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The servers of a point."""

    runtime: Literal["synthetic", "llama_cpp"] = "synthetic"
    itl_ms: float = 0.0  # of the synthetic engine: the time between two of its steps
    max_sequences: int = 320  # that the engine decodes at the same time
    max_in_flight: int = 1024  # that the frontend admits at the same time
    precision: Literal["f16", "f32"] = "f16"  # of the demo model's weights and, at ours, of its KV cache
    num_rendered: int = 1  # models in the repository; all but the first are not loaded
    has_peer: bool = False  # llama.cpp's own server runs too, on the same weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One load on one setup: a row of the table."""

    label: str
    load: Load
    setup: Setup = Setup()
    server: str = OURS
    has_engine_clock: bool = False  # each token's latency is counted from its engine step


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A bound on a metric's median at a point."""

    point: str
    metric: str
    at_most: float | None = None
    at_least: float | None = None

    def holds(self, value: float) -> bool:
        """Whether a value is within the bound; NaN never is."""
        return (self.at_most is None or value <= self.at_most) and (self.at_least is None or value >= self.at_least)

    def __str__(self) -> str:
        return f"at most {self.at_most:,g}" if self.at_most is not None else f"at least {self.at_least:,g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Points that belong together, with their table and bounds."""

    name: str
    title: str
    points: tuple[Point, ...]
    metrics: tuple[str, ...]  # the columns of the table
    bounds: tuple[Bound, ...] = ()
    max_repeats: int = 5  # lower for long runs


def setups_of(scenarios: Iterable[Scenario]) -> list[Setup]:
    """Return the distinct setups, in order."""
    return list(dict.fromkeys(point.setup for scenario in scenarios for point in scenario.points))


_COST = ("tokens_per_s", "cpu_us_per_token")
_LATENCY = ("ttft_ms.p50", "ttft_ms.p99")
_AGAINST_PEER = ("tokens_per_s", "ttft_ms.p50", "chunk_gap_ms.p50", "chunk_gap_ms.p99", "ratio_to_peer")
_PACED = 1e3 / 30  # ms: 30 tokens a second


def _unpaced(num_streams: int, window_s: float) -> Point:
    load = Load(num_streams=num_streams, num_tokens=200, warmup_s=1.0, window_s=window_s)
    return Point(label=f"{num_streams} streams", load=load)


def _cpu_engine(precision: Literal["f16", "f32"]) -> tuple[Point, ...]:
    setup = Setup(runtime="llama_cpp", max_sequences=16, precision=precision, has_peer=True)
    return tuple(
        Point(
            label=f"{num_streams} streams, {server}",
            load=Load(
                num_streams=num_streams, num_tokens=128, prompt_words=24, warmup_s=1.0, window_s=3.0, is_chat=False
            ),
            setup=setup,
            server=server,
        )
        for num_streams in (1, 8, 16)
        for server in (OURS, PEER)
    )


def _rendered(num_models: int) -> Point:
    load = Load(num_streams=8, num_tokens=1, warmup_s=0.5, window_s=1.5)
    return Point(label=f"{num_models} models", load=load, setup=Setup(num_rendered=num_models))


def _offered(rate_per_s: float) -> Point:
    load = Load(rate_per_s=rate_per_s, num_tokens=50, itl_ms=20, warmup_s=1.5, window_s=3)
    return Point(label=f"{rate_per_s:g} requests/s", load=load, setup=Setup(itl_ms=20, max_sequences=1024))


SUITE = (
    Scenario(
        name="unpaced",
        title="Synthetic engine without a pace, 64 streams of 200 tokens",
        points=(_unpaced(64, window_s=3.0),),
        metrics=(*_COST, "tokens_per_chunk", *_LATENCY),
        bounds=(
            Bound(point="64 streams", metric="tokens_per_s", at_least=45_000),
            Bound(point="64 streams", metric="cpu_us_per_token", at_most=40),
        ),
    ),
    Scenario(
        name="paced",
        title="Synthetic engine at 30 tokens/s per stream, 256 streams",
        points=(
            Point(
                label="256 streams",
                load=Load(
                    num_streams=256,
                    num_tokens=210,
                    requests_per_stream=1,
                    itl_ms=_PACED,
                    ramp_s=1.0,
                    warmup_s=2.0,
                    window_s=4.5,
                ),
                setup=Setup(itl_ms=_PACED),
            ),
        ),
        metrics=(*_COST, "added_itl_ms.p50", "added_itl_ms.p99", "lateness_ms.p99", "slowest_pace"),
        bounds=(
            Bound(point="256 streams", metric="added_itl_ms.p99", at_most=45),
            Bound(point="256 streams", metric="cpu_us_per_token", at_most=110),
            Bound(point="256 streams", metric="slowest_pace", at_least=0.97),
        ),
    ),
    Scenario(
        name="one-stream",
        title="Synthetic engine, one stream: the first token of an idle engine, and each token at 50 tokens/s",
        points=(
            # An idle engine without a pace makes its first token at once, so all of the time is ours.
            Point(label="first token", load=Load(num_streams=1, num_tokens=10, warmup_s=0.5, window_s=2)),
            # The step of a token is seen by a call straight to the engine, which is late by less than `engine_call_ms`.
            # `added_token_ms` is too small by that at most.
            Point(
                label="each token",
                load=Load(num_streams=1, num_tokens=50, itl_ms=20, warmup_s=0.3, window_s=3, keeps_arrivals=True),
                setup=Setup(itl_ms=20),
                has_engine_clock=True,
            ),
        ),
        metrics=(*_LATENCY, "added_token_ms.p50", "added_token_ms.p99", "engine_call_ms"),
        bounds=(
            Bound(point="first token", metric="ttft_ms.p50", at_most=4),
            Bound(point="each token", metric="added_token_ms.p50", at_most=1),
        ),
    ),
    Scenario(
        name="cpu-engine",
        title="CPU engine, demo model in f16, against llama.cpp's own server on the same file",
        points=_cpu_engine("f16"),
        metrics=_AGAINST_PEER,
        bounds=tuple(
            Bound(point=f"{num_streams} streams, {OURS}", metric="ratio_to_peer", at_least=1.0)
            for num_streams in (1, 8, 16)
        ),
    ),
    Scenario(
        # Ours keeps the KV cache in f32 too, for texts that do not depend on the traffic; the peer's is f16.
        name="cpu-engine-f32",
        title="The same with the demo model in f32, as `build demo` makes it",
        points=_cpu_engine("f32"),
        metrics=_AGAINST_PEER,
        max_repeats=3,
    ),
    Scenario(
        name="idle-slow",
        title="1,000 streams at a token a second each",
        points=(
            Point(
                label="1000 streams",
                load=Load(
                    num_streams=1000,
                    num_tokens=12,
                    requests_per_stream=1,
                    itl_ms=1000,
                    ramp_s=3.0,
                    warmup_s=5.0,
                    window_s=6.0,
                ),
                setup=Setup(itl_ms=1000, max_sequences=1024),
            ),
        ),
        metrics=("tokens_per_s", "frontend_rss_mb", "fewest_tokens", "lateness_ms.p99"),
        bounds=(
            Bound(point="1000 streams", metric="frontend_rss_mb", at_most=300),
            Bound(point="1000 streams", metric="fewest_tokens", at_least=5),  # a token a second, in 6 s
        ),
        max_repeats=2,
    ),
    Scenario(
        name="streams",
        title="Synthetic engine without a pace: cost per token against the number of streams",
        points=tuple(_unpaced(num_streams, window_s=2.0) for num_streams in (16, 64, 256)),
        metrics=(*_COST, "tokens_per_chunk", *_LATENCY, "cost_to_first"),
        bounds=(Bound(point="256 streams", metric="cost_to_first", at_most=1.05),),  # flat, but for noise
    ),
    Scenario(
        name="models",
        title="Cost per request of one token against the number of rendered models, one of them loaded",
        points=tuple(_rendered(num_models) for num_models in (1, 8, 32)),
        metrics=("requests_per_s", "cpu_us_per_request", *_LATENCY, "cost_to_first"),
        bounds=(Bound(point="32 models", metric="cost_to_first", at_most=1.05),),
    ),
    Scenario(
        name="offered-load",
        title="Open loop, Poisson arrivals: requests of 50 tokens at 50 tokens/s",
        points=tuple(_offered(rate_per_s) for rate_per_s in (25, 50, 100, 200, 300)),
        metrics=("tokens_per_s", "cpu_us_per_token", *_LATENCY, "added_itl_ms.p99", "request_ms.p50", "request_ms.p99"),
        max_repeats=2,
    ),
)


def custom(load: Load, setup: Setup) -> Scenario:
    """Return the scenario of a load from the command line."""
    kind = f"{load.num_streams} streams" if load.rate_per_s is None else f"{load.rate_per_s:g} requests/s"
    paced = ("added_itl_ms.p50", "added_itl_ms.p99", "slowest_pace") if load.itl_ms is not None else ()
    return Scenario(
        name="custom",
        title=f"{kind} of {load.num_tokens} tokens",
        points=(Point(label=kind, load=load, setup=setup),),
        metrics=(*_COST, "tokens_per_chunk", *_LATENCY, "chunk_gap_ms.p50", "chunk_gap_ms.p99", *paced),
    )


def quick(scenarios: Iterable[Scenario]) -> list[Scenario]:
    """Return the scenarios cut down to a trial run without bounds."""
    return [
        replace(
            scenario,
            title=f"Cut down, figures and labels mean nothing: {scenario.title}",
            points=tuple(map(_quick_point, scenario.points)),
            bounds=(),
            max_repeats=1,
        )
        for scenario in scenarios
    ]


def _quick_point(point: Point) -> Point:
    """Cut a point down. All paces become the same one, so that few servers are started."""
    itl_ms = point.load.itl_ms and 20.0
    load = replace(
        point.load,
        num_streams=min(point.load.num_streams, 16),
        num_tokens=min(point.load.num_tokens, 10),
        rate_per_s=point.load.rate_per_s and min(point.load.rate_per_s, 20),
        itl_ms=itl_ms,
        ramp_s=min(point.load.ramp_s, 0.1),
        warmup_s=0.1,
        window_s=0.2,
    )
    setup = replace(
        point.setup,
        itl_ms=itl_ms or 0.0,
        max_sequences=min(point.setup.max_sequences, 64),
        num_rendered=min(point.setup.num_rendered, 2),
    )
    return replace(point, load=load, setup=setup)
