"""The suite of scenarios, with their setups and bounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tests.workshop.load.load import Load

OURS = "conch"
LLAMA_CPP = "llama.cpp"
DYNAMO = "Dynamo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The servers of a point."""

    runtime: Literal["synthetic", "llama_cpp"] = "synthetic"
    itl_ms: float = 0.0  # of the synthetic engine: the time between two of its steps
    max_sequences: int = 320  # that the engine decodes at the same time
    max_in_flight: int = 1024  # that the frontend admits at the same time
    precision: Literal["f16", "f32", "q8_0"] = "f16"  # of the weights; in f32 our KV cache is f32 too
    # 370 million random ones; SmolLM2's 135 million in Q4_1, also with a vocabulary of 152 thousand; all-MiniLM-L6-v2,
    # which embeds. The synthetic engine has only the tokenizer.
    weights: Literal["demo", "random", "smollm2", "smollm2-wide", "minilm"] = "demo"
    speculative: str = ""  # how our CPU engine drafts tokens; empty: not at all
    num_workers: int = 1  # processes of the frontend
    num_rendered: int = 1  # models in the repository; all but the first are not loaded
    peer: str = ""  # another server that runs too: LLAMA_CPP on the same weights, or DYNAMO with its mock engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One load on one setup: a row of the table."""

    label: str
    load: Load
    setup: Setup = Setup()
    server: str = OURS
    # The rate of an open loop, of the requests_per_s of the scenario's first point in the same repeat.
    share_of_capacity: float | None = None
    has_engine_clock: bool = False  # each token's latency is counted from its engine step
    is_grpc: bool = False  # clients of the public ensemble, without the frontend


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
_AGAINST_DYNAMO = ("ratio_to_peer", "cpu_ratio_to_peer")
_LATENCY = ("ttft_ms.p50", "ttft_ms.p99")
_AGAINST_LLAMA_CPP = (
    "tokens_per_s",
    "ttft_ms.p50",
    "chunk_gap_ms.p50",
    "chunk_gap_ms.p99",
    "ratio_to_peer",
    "ttft_ratio_to_peer",
)
_PACED = 1e3 / 30  # ms: 30 tokens a second
_CHATS_AT_PACE = Load(
    num_streams=256, num_tokens=210, requests_per_stream=1, itl_ms=_PACED, ramp_s=1.0, warmup_s=2.0, window_s=4.5
)
_COMPLETIONS = Load(num_tokens=128, prompt_words=24, warmup_s=1.0, window_s=3.0, api="completions")
_REAL = replace(_COMPLETIONS, num_tokens=64, prompt_words=4, window_s=5.0)
# Without top_k and min_p, llama.cpp's server would draw from the 40 likeliest tokens, and ours from all.
_SAMPLED = replace(_REAL, fields={"temperature": 0.8, "top_p": 0.95, "top_k": 0, "min_p": 0})
_PENALIZED = replace(_REAL, fields={**_SAMPLED.fields, "presence_penalty": 0.5, "frequency_penalty": 0.5})

_REPEATED = replace(_REAL, num_tokens=256, repeated_chars=400, window_s=15.0)


def _beside_dynamo(
    label: str,
    load: Load,
    weights: Literal["demo", "smollm2"] = "demo",
    share_of_capacity: float | None = None,
) -> tuple[Point, ...]:
    """Return a load on an engine without weights, ours and Dynamo's, in turns."""
    point = Point(
        label=label,
        load=load,
        setup=Setup(itl_ms=load.itl_ms or 0.0, weights=weights, peer=DYNAMO),
        share_of_capacity=share_of_capacity,
    )
    return tuple(replace(point, label=f"{label}, {server}", server=server) for server in (OURS, DYNAMO))


def _unpaced(num_streams: int, **more: Any) -> tuple[Point, ...]:
    load = Load(num_streams=num_streams, num_tokens=200, warmup_s=1.0, window_s=3.0, **more)
    return _beside_dynamo(f"{num_streams} streams", load)


def _ungathered(num_streams: int) -> tuple[Point, Point]:
    """Return streams of one token an event. The field is ours; Dynamo, which refuses it, never gathers tokens."""
    ours, peer = _unpaced(num_streams, reuses_connections=False)
    return replace(ours, load=replace(ours.load, fields={**ours.load.fields, "stream_interval_ms": 0})), peer


def _apis(num_streams: int, num_tokens: int) -> tuple[Point, ...]:
    """Return the same load on each API for chats."""
    load = Load(num_streams=num_streams, num_tokens=num_tokens, warmup_s=1.0, window_s=3.0)
    return tuple(
        Point(label=api, load=replace(load, api=api), setup=Setup(peer=DYNAMO))
        for api in ("chat/completions", "responses", "messages")
    )


def _cpu_engine(setup: Setup, nums_streams: Sequence[int], load: Load) -> tuple[Point, ...]:
    return tuple(
        Point(
            label=f"{num_streams} streams, {server}",
            load=replace(load, num_streams=num_streams),
            setup=replace(setup, runtime="llama_cpp", peer=LLAMA_CPP),
            server=server,
        )
        for num_streams in nums_streams
        for server in (OURS, LLAMA_CPP)
    )


def _real(
    name: str,
    title: str,
    load: Load,
    weights: Literal["smollm2", "smollm2-wide"] = "smollm2",
    speculative: str = "",
    max_repeats: int = 3,
) -> Scenario:
    """Return a load on a model that people use, beside llama.cpp's own server."""
    setup = Setup(max_sequences=8, weights=weights, speculative=speculative)
    return Scenario(
        name=f"cpu-engine-{name}",
        title=title,
        points=_cpu_engine(setup, (1, 4) if load.repeated_chars else (1, 4, 8), load),
        metrics=_AGAINST_LLAMA_CPP,
        max_repeats=max_repeats,
    )


def _embeddings(label: str, num_streams: int, **more: Any) -> tuple[Point, ...]:
    """Return a load on an embedder, each request on a new connection, beside llama.cpp's own server."""
    load = Load(
        num_streams=num_streams,
        api="embeddings",
        fields={},
        reuses_connections=False,
        warmup_s=1.0,
        window_s=5.0,
        **more,
    )
    points = _cpu_engine(Setup(max_sequences=8, weights="minilm"), (num_streams,), load)
    return tuple(replace(point, label=f"{label}, {point.server}") for point in points)


def _rendered(num_models: int) -> Point:
    load = Load(num_streams=8, num_tokens=1, warmup_s=0.5, window_s=1.5)
    return Point(label=f"{num_models} models", load=load, setup=Setup(num_rendered=num_models))


def _slow(num_streams: int) -> Point:
    """Return streams that all together make 1,000 tokens a second."""
    ramp_s = num_streams / 200
    load = Load(
        num_streams=num_streams,
        num_tokens=12,
        requests_per_stream=1,
        itl_ms=num_streams,
        ramp_s=ramp_s,
        warmup_s=ramp_s + 2.0,
        window_s=3 * num_streams / 1e3,
    )
    setup = Setup(itl_ms=num_streams, max_sequences=num_streams + 64, max_in_flight=num_streams + 64)
    return Point(label=f"{num_streams} streams", load=load, setup=setup)


def _offered(rate_per_s: float) -> Point:
    load = Load(rate_per_s=rate_per_s, num_tokens=50, itl_ms=20, warmup_s=1.5, window_s=3)
    return Point(label=f"{rate_per_s:g} requests/s", load=load, setup=Setup(itl_ms=20, max_sequences=1024))


SUITE = (
    Scenario(
        name="short",
        title="Requests of one token, 32 clients",
        points=_beside_dynamo("32 clients", Load(num_streams=32, num_tokens=1, warmup_s=1.0, window_s=3.0)),
        metrics=("requests_per_s", "cpu_us_per_request", *_LATENCY, *_AGAINST_DYNAMO),
    ),
    Scenario(
        name="one-by-one",
        title="Requests of one token as browsers and scripts send them",
        points=(
            *_beside_dynamo(
                "32 clients, a connection for each request",
                Load(num_streams=32, num_tokens=1, reuses_connections=False, warmup_s=1.0, window_s=3.0),
            ),
            *_beside_dynamo(
                "at random times, 60 % of our rate above",
                Load(num_tokens=1, reuses_connections=False, warmup_s=1.0, window_s=5.0),
                share_of_capacity=0.6,
            ),
        ),
        metrics=("requests_per_s", "cpu_us_per_request", *_LATENCY, *_AGAINST_DYNAMO),
    ),
    Scenario(
        name="long-prompts",
        title="Agents that send 32,000 tokens of SmolLM2's vocabulary, nine tenths of them again",
        points=_beside_dynamo(
            "8 agents",
            Load(num_streams=8, num_tokens=1, turn_chars=12_500, warmup_s=3.0, window_s=8.0),
            weights="smollm2",
        ),
        metrics=("requests_per_s", "cpu_us_per_token", *_LATENCY, *_AGAINST_DYNAMO),
        max_repeats=3,
    ),
    Scenario(
        name="unpaced",
        title="Synthetic engine without a pace, streams of 200 tokens",
        points=(*_unpaced(1), *_unpaced(16), *_unpaced(64), *_unpaced(256)),
        metrics=(*_COST, "tokens_per_chunk", *_LATENCY, *_AGAINST_DYNAMO),
        bounds=tuple(
            Bound(point=f"{num_streams} streams, {OURS}", metric="tokens_per_chunk", at_most=16)
            for num_streams in (1, 16, 64, 256)
        ),
    ),
    Scenario(
        name="new-connections",
        title="Synthetic engine without a pace, streams of 200 tokens, each on a new connection",
        points=(*_unpaced(1, reuses_connections=False), *_unpaced(64, reuses_connections=False)),
        metrics=(*_COST, "tokens_per_chunk", *_LATENCY, *_AGAINST_DYNAMO),
    ),
    Scenario(
        name="ungathered",
        title="Streams of 200 tokens on new connections, each token an event: ours without gathering",
        points=_ungathered(64),
        metrics=(*_COST, "tokens_per_chunk", *_LATENCY, *_AGAINST_DYNAMO),
        bounds=(Bound(point=f"64 streams, {OURS}", metric="tokens_per_chunk", at_most=1.0),),
    ),
    Scenario(
        name="apis",
        title="The APIs for chats, 64 streams of 200 tokens",
        points=_apis(64, 200),
        metrics=(*_COST, "tokens_per_chunk", "cost_to_first"),
    ),
    Scenario(
        name="apis-short",
        title="The APIs for chats, requests of one token, 32 clients",
        points=_apis(32, 1),
        metrics=("requests_per_s", "cpu_us_per_request", *_LATENCY, "cost_to_first"),
    ),
    Scenario(
        name="first-token",
        title="One client of an idle server: time to the first token",
        points=(
            *_beside_dynamo("one after the other", Load(num_streams=1, num_tokens=1, warmup_s=0.5, window_s=2.0)),
            *_beside_dynamo(
                "after 2 s of silence", Load(num_streams=1, num_tokens=1, pause_s=2.0, warmup_s=0.5, window_s=10.0)
            ),
        ),
        metrics=(*_LATENCY, "cpu_us_per_request", "cpu_ratio_to_peer"),
    ),
    Scenario(
        name="grpc",
        title="gRPC clients of the public ensemble: streams of 200 tokens",
        points=(
            Point(
                label="64 streams",
                load=Load(num_streams=64, num_tokens=200, warmup_s=1.0, window_s=3.0),
                setup=Setup(peer=DYNAMO),  # as above, so that no server is started for it
                is_grpc=True,
            ),
        ),
        metrics=("responses_per_s", "cpu_us_per_response", *_COST, "tokens_per_chunk", *_LATENCY),
    ),
    Scenario(
        name="paced",
        title="Synthetic engine at 30 tokens/s per stream, 256 streams",
        points=_beside_dynamo("256 streams", _CHATS_AT_PACE),
        metrics=(
            *_COST,
            "tokens_per_chunk",
            "chunk_gap_ms.p50",
            "chunk_gap_ms.p99",
            "added_itl_ms.p99",
            "slowest_pace",
            "cpu_ratio_to_peer",
        ),
        bounds=(
            Bound(point=f"256 streams, {OURS}", metric="tokens_per_chunk", at_most=1.05),
            Bound(point=f"256 streams, {OURS}", metric="slowest_pace", at_least=0.97),
        ),
    ),
    Scenario(
        name="one-stream",
        title="Synthetic engine, one stream: each token at 50 tokens/s",
        points=(
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
        bounds=(Bound(point="each token", metric="added_token_ms.p50", at_most=1),),
    ),
    Scenario(
        name="cpu-engine",
        title="CPU engine, demo model in f16, against llama.cpp's own server on the same file",
        points=_cpu_engine(Setup(max_sequences=16), (1, 8, 16), _COMPLETIONS),
        metrics=_AGAINST_LLAMA_CPP,
        bounds=tuple(
            Bound(point=f"{num_streams} streams, {OURS}", metric="ratio_to_peer", at_least=1.0)
            for num_streams in (1, 8, 16)
        ),
    ),
    Scenario(
        # Ours keeps the KV cache in f32 too, for texts that do not depend on the traffic; the peer's is f16.
        name="cpu-engine-f32",
        title="The same with the demo model in f32, as `build demo` makes it",
        points=_cpu_engine(Setup(max_sequences=16, precision="f32"), (1, 8, 16), _COMPLETIONS),
        metrics=_AGAINST_LLAMA_CPP,
        max_repeats=3,
    ),
    Scenario(
        name="cpu-engine-large",
        title="The same with 370 million random weights in q8_0",
        points=_cpu_engine(
            Setup(max_sequences=8, precision="q8_0", weights="random"),
            (1, 4, 8),
            replace(_COMPLETIONS, num_tokens=64, warmup_s=4.0, window_s=15.0),
        ),
        metrics=_AGAINST_LLAMA_CPP,
        max_repeats=3,
    ),
    _real(
        "real",
        "SmolLM2-135M-Instruct in Q4_1, greedy, prompts of a few words, against llama.cpp's own server",
        _REAL,
        max_repeats=5,
    ),
    _real("sampled", "SmolLM2 with temperature and top_p", _SAMPLED, max_repeats=5),
    _real(
        "penalties",
        "SmolLM2 with temperature, top_p, presence_penalty and frequency_penalty",
        _PENALIZED,
        max_repeats=5,
    ),
    _real("prompts", "SmolLM2, greedy, prompts of about 200 tokens", replace(_REAL, prompt_words=150)),
    _real("repeated", "SmolLM2, greedy, source code that is repeated, without speculation", _REPEATED),
    _real("speculative", "SmolLM2, greedy, source code that is repeated, with drafts", _REPEATED, speculative="ngram"),
    _real(
        "wide",
        "SmolLM2 with a vocabulary of 152 thousand, greedy, prompts of a few words",
        _REAL,
        weights="smollm2-wide",
    ),
    _real(
        "wide-sampled",
        "SmolLM2 with a vocabulary of 152 thousand, with temperature and top_p",
        _SAMPLED,
        weights="smollm2-wide",
    ),
    Scenario(
        name="images",
        title="CPU engine, demo model in f16: chats with a new picture each, one token, against llama.cpp's own server",
        points=_cpu_engine(
            Setup(max_sequences=16), (1, 8), replace(_COMPLETIONS, num_tokens=1, has_image=True, api="chat/completions")
        ),
        metrics=("requests_per_s", "cpu_us_per_request", *_LATENCY, "ratio_to_peer"),
    ),
    Scenario(
        name="embeddings",
        title="all-MiniLM-L6-v2 in f16, against llama.cpp's own server on the same file",
        points=(
            *_embeddings("1 client, texts of 8 words", 1, prompt_words=8),
            *_embeddings("8 clients, texts of 8 words", 8, prompt_words=8),
            *_embeddings("1 client, 32 texts of 2 to 60 words", 1, num_inputs=32, min_prompt_words=2, prompt_words=60),
            *_embeddings("1 client, texts of 200 to 450 words", 1, min_prompt_words=200, prompt_words=450),
            *_embeddings("8 clients, texts of 200 to 450 words", 8, min_prompt_words=200, prompt_words=450),
        ),
        metrics=("embeddings_per_s", "cpu_us_per_embedding", "request_ms.p50", "request_ms.p99", "ratio_to_peer"),
    ),
    Scenario(
        name="many-streams",
        title="Slow streams: 1,000 tokens a second in all",
        points=(_slow(1_000), _slow(10_000)),
        metrics=(*_COST, "frontend_rss_mb", "lateness_ms.p99", "slowest_pace"),
        bounds=(
            Bound(point="1000 streams", metric="frontend_rss_mb", at_most=300),
            Bound(point="10000 streams", metric="slowest_pace", at_least=0.97),
        ),
        max_repeats=1,
    ),
    Scenario(
        name="workers",
        title="256 streams at 30 tokens/s, against the number of the frontend's processes",
        points=tuple(
            Point(
                label=f"{num_workers} workers", load=_CHATS_AT_PACE, setup=Setup(itl_ms=_PACED, num_workers=num_workers)
            )
            for num_workers in (1, 2, 4)
        ),
        metrics=(*_COST, "tokens_per_chunk", "chunk_gap_ms.p99", "cost_to_first"),
        max_repeats=3,
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
    """Return the scenarios cut down to a trial run without bounds, and without the peer that has to be installed."""
    return [
        replace(
            scenario,
            title=f"Cut down, figures and labels mean nothing: {scenario.title}",
            points=tuple(_quick_point(point) for point in scenario.points if point.server != DYNAMO),
            bounds=(),
            max_repeats=1,
        )
        for scenario in scenarios
    ]


def _quick_point(point: Point) -> Point:
    """Cut a point down. Paces and CPU models become the same ones, so that few servers are started."""
    itl_ms = point.load.itl_ms and 20.0
    load = replace(
        point.load,
        num_streams=min(point.load.num_streams, 16),
        num_tokens=min(point.load.num_tokens, 10),
        repeated_chars=min(point.load.repeated_chars, 100),
        turn_chars=min(point.load.turn_chars, 100),
        rate_per_s=point.load.rate_per_s and min(point.load.rate_per_s, 20),
        itl_ms=itl_ms,
        ramp_s=min(point.load.ramp_s, 0.1),
        pause_s=min(point.load.pause_s, 0.1),
        warmup_s=0.1,
        window_s=0.2,
    )
    setup = replace(
        point.setup,
        itl_ms=itl_ms or 0.0,
        max_sequences=min(point.setup.max_sequences, 64),
        max_in_flight=64,
        precision="f16",
        weights="minilm" if point.setup.weights == "minilm" else "demo",
        num_workers=1,
        num_rendered=min(point.setup.num_rendered, 2),
        peer="" if point.setup.peer == DYNAMO else point.setup.peer,
    )
    return replace(point, load=load, setup=setup)
