"""Overload: what a model that is asked for five times what it can do still does, beside what it does unloaded."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import aiohttp
import numpy as np
import psutil
import uvloop
from aiohttp import web

from frontend.server import app_runner
from frontend.settings import Settings

_ITL_MS, _NUM_TOKENS, _MAX_SEQUENCES = 10.0, 50, 32
OVERLOAD = 5  # times the capacity


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's end."""

    status: int
    latency_s: float
    has_retry_after: bool


@dataclass(frozen=True, slots=True)
class Phase:
    """What a phase of the load found."""

    answers: Sequence[Answer]
    duration_s: float  # from the first request to the last answer

    def latencies_s(self, status: int) -> list[float]:
        """Return how long the answers of a status took."""
        return [answer.latency_s for answer in self.answers if answer.status == status]

    @property
    def rate_per_s(self) -> float:
        """Served requests a second."""
        return len(self.latencies_s(200)) / self.duration_s

    def p99_s(self, status: int) -> float:
        """Return the latency that one in a hundred exceeds."""
        return float(np.percentile(self.latencies_s(status), 99))


@asynccontextmanager
async def frontend(endpoint: str, **settings: Any) -> AsyncIterator[aiohttp.ClientSession]:
    """Run a frontend of a Triton here; yield a client of it."""
    runner = app_runner(Settings(triton_endpoints=(endpoint,), **settings))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as http:
            yield http
    finally:
        await runner.cleanup()


async def closed_loop(http: aiohttp.ClientSession, body: dict[str, Any], num_streams: int, duration_s: float) -> Phase:
    """Send the next request of each stream as soon as the last one is answered: capacity, unloaded by a queue."""
    answers: list[Answer] = []
    start_s = time.monotonic()

    async def stream() -> None:
        while time.monotonic() - start_s < duration_s:
            answers.append(await _ask(http, body))

    await asyncio.gather(*(stream() for _ in range(num_streams)))
    return Phase(answers, time.monotonic() - start_s)


async def open_loop(http: aiohttp.ClientSession, body: dict[str, Any], rate_per_s: float, duration_s: float) -> Phase:
    """Send requests at a rate, whatever becomes of them."""
    start_s = time.monotonic()
    tasks = []
    for number in range(int(rate_per_s * duration_s)):
        await asyncio.sleep(max(0.0, start_s + number / rate_per_s - time.monotonic()))
        tasks.append(asyncio.create_task(_ask(http, body)))
    sent_s = time.monotonic() - start_s
    answers = await asyncio.gather(*tasks)
    # What is served after the last request was sent is no part of the steady state: it counts by its share of time.
    return Phase(answers, sent_s + fmean(answer.latency_s for answer in answers if answer.status == 200))


async def _ask(http: aiohttp.ClientSession, body: dict[str, Any]) -> Answer:
    start_s = time.monotonic()
    async with http.post("/v1/completions", json=body) as response:
        await response.read()
        return Answer(response.status, time.monotonic() - start_s, "Retry-After" in response.headers)


async def compare(http: aiohttp.ClientSession, body: dict[str, Any], num_streams: int, seconds: float) -> list[Phase]:
    """Return the model unloaded, and overloaded."""
    await closed_loop(http, body, num_streams, 0.5)  # connections, caches
    unloaded = await closed_loop(http, body, num_streams, seconds)
    return [unloaded, await open_loop(http, body, OVERLOAD * unloaded.rate_per_s, seconds)]


def main() -> int:
    """Run it for as long as one wants, with a synthetic engine."""
    from tests.benchmarks.scenarios import OURS, Setup
    from tests.benchmarks.servers import Workshop

    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of each phase (%(default)s)")
    options = parser.parse_args()
    setup = Setup(itl_ms=_ITL_MS, max_sequences=_MAX_SEQUENCES)
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder), Path(folder) / "log", num_threads=1)
        with workshop.running(setup) as servers:
            server = servers[OURS]
            body = {"model": server.target.model, "prompt": "a", "max_tokens": _NUM_TOKENS, "ignore_eos": True}

            async def run() -> list[Phase]:
                limits = {"max_in_flight": _MAX_SEQUENCES, "max_queue_wait_s": 0.5}
                async with frontend(server.grpc_endpoint, **limits) as http:
                    return await compare(http, body, _MAX_SEQUENCES, options.seconds)

            before_bytes = psutil.Process().memory_info().rss
            phases = uvloop.run(run())
            grown_mb = (psutil.Process().memory_info().rss - before_bytes) / 1e6
    for name, phase in zip(("unloaded", f"at {OVERLOAD} times"), phases, strict=True):
        served, refused = phase.latencies_s(200), phase.latencies_s(503)
        sys.stdout.write(
            f"{name}: {len(phase.answers)} requests, {phase.rate_per_s:.1f} served/s, p50 {np.median(served):.3f} s,"
            f" p99 {phase.p99_s(200):.3f} s; {len(refused)} refused"
            + (f", p50 {np.median(refused) * 1e3:.1f} ms, p99 {phase.p99_s(503) * 1e3:.1f} ms" if refused else "")
            + "\n"
        )
    sys.stdout.write(f"memory of frontend and load generator together grew by {grown_mb:.1f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
