"""Runs points: the load generator in its own process, and the CPU accounts around the measured window."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from zlib import crc32

import numpy as np

from tests.workshop.load.accounting import Memory, Processes, cpu_between
from tests.workshop.load.engine_clock import EngineClock
from tests.workshop.load.generator import job_to_json
from tests.workshop.load.load import Load, Target
from tests.workshop.load.load_result import LoadResult
from tests.workshop.load.measures import Floats, Quantiles, latency_after_steps_s
from tests.workshop.load.scenarios import Point
from tests.workshop.load.servers import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measurement of one point."""

    scenario: str
    point: str
    repeat: int
    result: LoadResult
    window_s: float  # between both reads of the accounts
    cpu_s: Mapping[str, float]  # by name of process; empty: not measured
    generator_cpu_s: float
    memory: Mapping[str, Memory]  # at the end of the window
    added_token_ms: Quantiles  # from a token's engine step to the client; empty without an engine clock
    engine_call_ms: float  # the round trip of a call straight to the idle engine; NaN without one

    def metrics(self) -> dict[str, float]:
        """Return every metric by name; NaN without a value."""
        result = self.result
        cpu_us = sum(self.cpu_s.values()) * 1e6 if self.cpu_s else math.nan
        frontend = self.memory.get("frontend")
        values = {
            "tokens_per_s": result.num_tokens / self.window_s,
            "embeddings_per_s": result.num_tokens / self.window_s,
            "cpu_us_per_embedding": _ratio(cpu_us, result.num_tokens),
            "requests_per_s": result.num_requests / self.window_s,
            "responses_per_s": result.num_chunks / self.window_s,
            "cpu_us_per_response": _ratio(cpu_us, result.num_chunks),
            "tokens_per_chunk": _ratio(result.num_tokens, result.num_chunks),
            "cpu_us_per_token": _ratio(cpu_us, result.num_tokens),
            "cpu_us_per_request": _ratio(cpu_us, result.num_requests),
            "generator_us_per_token": _ratio(self.generator_cpu_s * 1e6, result.num_tokens),
            "slowest_pace": result.kept_pace.at(0),
            "num_failed": float(result.num_failed),
            "engine_call_ms": self.engine_call_ms,
            "frontend_rss_mb": frontend.largest_rss_bytes / 1e6 if frontend else math.nan,
        }
        values |= {f"cpu_us_per_token.{name}": _ratio(s * 1e6, result.num_tokens) for name, s in self.cpu_s.items()}
        for name in ("ttft_ms", "request_ms", "chunk_gap_ms", "added_itl_ms", "lateness_ms"):
            values |= _percentiles(name, getattr(result, name))
        return values | _percentiles("added_token_ms", self.added_token_ms)

    def to_dict(self) -> dict[str, object]:
        """Return everything for JSON."""
        return {"metrics": self.metrics(), **asdict(self)}


def run_points(name: str, points: Sequence[Point], servers: Mapping[str, Server], num_repeats: int) -> Iterator[Run]:
    """Yield the runs of all points on running servers, then their repeats."""
    for repeat in range(1, num_repeats + 1):
        capacity_per_s = math.nan
        for index, point in enumerate(points):
            if point.share_of_capacity is not None:
                rate_per_s = max(point.share_of_capacity * capacity_per_s, 1.0)  # without a right answer, one
                point = replace(point, load=replace(point.load, rate_per_s=rate_per_s))
            run = run_point(name, point, servers[point.server], repeat)
            if index == 0:
                capacity_per_s = run.metrics()["requests_per_s"]
            yield run


def run_point(scenario: str, point: Point, server: Server, repeat: int) -> Run:
    """Measure once."""
    # The prompts are new in each run, because a server may cache prompts. Both servers of a row get the same ones.
    load = replace(point.load, seed=crc32(f"{scenario} {point.load.num_streams} {repeat}".encode()))
    added, call_ms = Quantiles.of([]), math.nan
    with ExitStack() as stack:
        clock = None
        if point.has_engine_clock:
            assert point.load.itl_ms is not None, "an engine clock needs a pace"
            clock = stack.enter_context(EngineClock.of(server.grpc_endpoint, server.target.model))
            call_ms = clock.idle_round_trip_s(point.load.itl_ms / 1e3) * 1e3
        with clock.watching() if clock is not None else nullcontext():
            target = server.target
            if point.is_grpc:
                target = replace(target, url=f"grpc://{server.grpc_endpoint}")
            result, window = measure(load, target, server.processes)
        if clock is not None:
            added = _added_token_ms(result, clock.steps_s, point.load.itl_ms or 0)
    return Run(
        scenario=scenario,
        point=point.label,
        repeat=repeat,
        result=result,
        window_s=window.duration_s,
        cpu_s=window.cpu_s,
        generator_cpu_s=window.generator_cpu_s,
        memory=window.memory,
        added_token_ms=added,
        engine_call_ms=call_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The accounts of the measured window."""

    duration_s: float
    cpu_s: Mapping[str, float]
    generator_cpu_s: float
    memory: Mapping[str, Memory]


def measure(load: Load, target: Target, processes: Processes) -> tuple[LoadResult, Window]:
    """Send a load from another process, and read the accounts at both ends of its window.

    Raises:
        subprocess.CalledProcessError: the load generator failed.
    """
    command = [sys.executable, "-m", "tests.workshop.load.generator"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as generator:
        assert generator.stdin is not None and generator.stdout is not None
        generator.stdin.write(job_to_json(load, target))
        generator.stdin.close()
        started = generator.stdout.readline()
        if started:
            accounts = Processes({"generator": generator.pid})
            _sleep_until(float(started) + load.warmup_s)
            before, own_before = processes.sample(), accounts.sample()
            _sleep_until(float(started) + load.warmup_s + load.window_s)
            after, own_after = processes.sample(), accounts.sample()
            memory = processes.memory()
        answer = generator.stdout.read()
    if generator.returncode:
        raise subprocess.CalledProcessError(generator.returncode, command)
    return LoadResult.from_json(answer), Window(
        duration_s=after.time_s - before.time_s,
        cpu_s=cpu_between(before, after),
        generator_cpu_s=sum(cpu_between(own_before, own_after).values()),
        memory=memory,
    )


def costs_to_first(runs: Sequence[Run], first: str) -> dict[tuple[str, int], float]:
    """Return the server CPU per token over that of the point `first` in the same repeat, by point and repeat.

    Where each request has one token, it is that per request.
    """
    costs = {(run.point, run.repeat): run.metrics()["cpu_us_per_token"] for run in runs}
    return {
        (point, repeat): _ratio(cost, costs.get((first, repeat), math.nan)) for (point, repeat), cost in costs.items()
    }


def _added_token_ms(result: LoadResult, steps_s: Floats, itl_ms: float) -> Quantiles:
    parts = [latency_after_steps_s(np.array(times), steps_s, itl_ms / 1e3) for times in result.arrivals_s]
    return Quantiles.of(np.concatenate(parts) * 1e3 if parts else [])


def _percentiles(name: str, quantiles: Quantiles) -> dict[str, float]:
    return {f"{name}.p{percent}": quantiles.at(percent) for percent in (50, 90, 99)}


def _ratio(value: float, by: float) -> float:
    return value / by if by else math.nan


def _sleep_until(time_s: float) -> None:
    time.sleep(max(0.0, time_s - time.monotonic()))
