"""Closed and open loops of requests, and a model with room, at its capacity and beyond it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import aiohttp
import numpy as np

OVERLOAD = 5  # times the capacity
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
