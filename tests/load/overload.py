"""Overload: a model at five times its capacity, compared with the unloaded model."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import aiohttp
import numpy as np
import uvloop

from frontend.settings import Settings
from tests.load.scenarios import OURS, Setup
from tests.load.servers import Server, ServerFactory

OVERLOAD = 5  # times the capacity
_ITL_MS, _MAX_SEQUENCES = 10.0, 32
_LATE_S = 0.1  # a slower refusal delays its client


type Bodies = Iterator[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request."""

    status: int
    started_s: float  # time.monotonic()
    ended_s: float
    has_retry_after: bool

    @property
    def latency_s(self) -> float:
        """The time from the request to the end of its answer."""
        return self.ended_s - self.started_s


@dataclass(frozen=True, slots=True)
class Phase:
    """The answers of a phase of the load."""

    answers: Sequence[Answer]
    duration_s: float  # of serving

    def latencies_s(self, status: int) -> list[float]:
        """Return the latencies of the answers of a status."""
        return [answer.latency_s for answer in self.answers if answer.status == status]

    @property
    def rate_per_s(self) -> float:
        """Served requests a second."""
        return len(self.latencies_s(200)) / self.duration_s

    def percentile_s(self, status: int, percent: float) -> float:
        """Return a percentile of the latencies of a status."""
        return float(np.percentile(self.latencies_s(status), percent))

    @property
    def share_refused_late(self) -> float:
        """The share of late refusals, 0 to 1."""
        refused = self.latencies_s(503)
        return sum(latency_s > _LATE_S for latency_s in refused) / max(1, len(refused))


@dataclass(frozen=True, slots=True)
class Comparison:
    """A model with room, at its capacity, and beyond it."""

    unloaded: Phase
    full: Phase
    overloaded: Phase


def bodies_of(model: str, num_tokens: Sequence[int]) -> Bodies:
    """Yield endless completions of these lengths, in the same mixture every time."""
    rng = random.Random(0)
    while True:
        yield {"model": model, "prompt": "a", "max_tokens": rng.choice(num_tokens), "ignore_eos": True}


@asynccontextmanager
async def client_of(url: str, headers: Mapping[str, str] | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a client without a limit of connections."""
    async with aiohttp.ClientSession(url, headers=headers, connector=aiohttp.TCPConnector(limit=0)) as http:
        yield http


async def closed_loop(http: aiohttp.ClientSession, bodies: Bodies, num_streams: int, duration_s: float) -> Phase:
    """Send the next request of each stream after the answer to the last one."""
    answers: list[Answer] = []
    start_s = time.monotonic()

    async def stream() -> None:
        while time.monotonic() - start_s < duration_s:
            answers.append(await ask(http, next(bodies)))

    await asyncio.gather(*(stream() for _ in range(num_streams)))
    return Phase(answers, time.monotonic() - start_s)


async def open_loop(http: aiohttp.ClientSession, bodies: Bodies, rate_per_s: float, duration_s: float) -> Phase:
    """Send requests at a rate that does not depend on the answers."""
    start_s = time.monotonic()
    tasks = []
    for number in range(int(rate_per_s * duration_s)):
        await asyncio.sleep(max(0.0, start_s + number / rate_per_s - time.monotonic()))
        tasks.append(asyncio.create_task(ask(http, next(bodies))))
    sent_s = time.monotonic() - start_s
    answers = await asyncio.gather(*tasks)
    # Answers after the last request are not part of the steady state: they count by their share of time.
    return Phase(answers, sent_s + fmean(answer.latency_s for answer in answers if answer.status == 200))


async def ask(http: aiohttp.ClientSession, body: dict[str, Any]) -> Answer:
    """Send a request and wait for its end."""
    start_s = time.monotonic()
    async with http.post("/v1/completions", json=body) as response:
        await response.read()
        return Answer(response.status, start_s, time.monotonic(), "Retry-After" in response.headers)


async def compare(http: aiohttp.ClientSession, bodies: Bodies, num_places: int, seconds: float) -> Comparison:
    """Run each phase for `seconds` on a model that runs `num_places` requests at the same time."""
    await closed_loop(http, bodies, num_places, 0.5)  # connections, caches
    unloaded = await closed_loop(http, bodies, max(1, num_places // 4), seconds)
    full = await closed_loop(http, bodies, num_places, seconds)
    return Comparison(unloaded, full, await open_loop(http, bodies, OVERLOAD * full.rate_per_s, seconds))


def main() -> int:
    """Run the phases with a synthetic engine, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.load.overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="of each phase (%(default)s)")
    lengths = {"mixed": range(25, 76), "same": (50,)}
    parser.add_argument("--lengths", choices=lengths, default="mixed", help="of the completions (%(default)s)")
    options = parser.parse_args()
    setup = Setup(itl_ms=_ITL_MS, max_sequences=_MAX_SEQUENCES, max_in_flight=Settings().max_in_flight)
    with tempfile.TemporaryDirectory() as folder:
        factory = ServerFactory(Path(folder), Path(folder) / "log", num_threads=1)
        with factory.running(setup) as servers:
            sys.stdout.write(
                "\n".join(uvloop.run(_measured(servers[OURS], lengths[options.lengths], options.seconds))) + "\n"
            )
    return 0


async def _measured(server: Server, num_tokens: Sequence[int], seconds: float) -> list[str]:
    """Return a table."""
    memory = [_memory_bytes(server)]

    async def watch_memory() -> None:
        while True:
            await asyncio.sleep(1)
            memory.append(_memory_bytes(server))

    watching = asyncio.create_task(watch_memory())
    async with client_of(server.target.url) as http:
        found = await compare(http, bodies_of(server.target.model, num_tokens), _MAX_SEQUENCES, seconds)
    watching.cancel()
    overloaded = memory[-max(4, int(seconds)) :]
    memory_mb = ", ".join(f"{overloaded[len(overloaded) * part // 4] / 1e6:.1f}" for part in range(4))
    phases = {
        "unloaded": found.unloaded,
        "just full": found.full,
        f"{OVERLOAD} times that": found.overloaded,
    }
    return [
        "| | requests/s | served/s | p50 | p99 | refused: p50 | p99 | later than 100 ms |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(f"| {name} | {_figures(phase)} |" for name, phase in phases.items()),
        "",
        f"p99 of the served: {found.overloaded.percentile_s(200, 99) / found.unloaded.percentile_s(200, 99):.2f} times"
        f" the unloaded; throughput: {found.overloaded.rate_per_s / found.full.rate_per_s:.1%} of the maximum; "
        f"memory of the frontend at each quarter of the overload: {memory_mb}, {memory[-1] / 1e6:.1f} MB",
    ]


def _figures(phase: Phase) -> str:
    served = f"{phase.percentile_s(200, 50) * 1e3:.0f} ms | {phase.percentile_s(200, 99) * 1e3:.0f} ms"
    refused = "- | - | -"
    if phase.latencies_s(503):
        times = (f"{phase.percentile_s(503, percent) * 1e3:.1f} ms" for percent in (50, 99))
        refused = " | ".join((*times, f"{phase.share_refused_late:.2%}"))
    return f"{len(phase.answers) / phase.duration_s:.1f} | {phase.rate_per_s:.1f} | {served} | {refused}"


def _memory_bytes(server: Server) -> int:
    return server.processes.memory()["frontend"].rss_bytes


if __name__ == "__main__":
    sys.exit(main())
