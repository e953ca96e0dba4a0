"""Attacks: the latency of healthy clients beside a sender of expensive requests.

Phases with and without the attack alternate; the figures are medians over the runs. `python -m tests.load.attacks`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import numpy as np

from tests.hostile import large
from tests.load.overload import client_of
from tests.load.scenarios import OURS, Setup
from tests.load.servers import Server, ServerFactory

MAX_RATIO, MAX_EXTRA_S = 3.0, 0.25  # of a healthy client's p99: the larger of the two bounds holds
_NUM_HEALTHY = 4  # streams of healthy requests
_HEALTHY_TOKENS = 8

type Attack = Iterator[tuple[str, str, bytes]]  # method, path and body of endless requests


@dataclass(frozen=True, slots=True)
class AttackPlan:
    """An attack, and the number of its requests at the same time."""

    requests: Callable[[str], Attack]  # takes the model's name
    concurrency: int


def _completions(model: str, **fields: Any) -> tuple[str, str, bytes]:
    body = {"model": model, "prompt": "a", "max_tokens": 4, **fields}
    return "POST", "/v1/completions", json.dumps(body).encode()


def grammars_of(num_levels: int) -> Callable[[str], Attack]:
    """Return different requests, each with a small grammar of one text of 2 ** levels characters."""

    def requests(model: str) -> Attack:
        rules = [f"r{level} ::= r{level + 1} r{level + 1}" for level in range(num_levels)]
        for number in itertools.count():
            grammar = "\n".join(["root ::= r0", *rules, f'r{num_levels} ::= "{number:x}"'])
            yield _completions(model, structured_outputs={"grammar": grammar})

    return requests


def _schemas(rules_of: Callable[[int], dict[str, int]], num_properties: int) -> Callable[[str], Attack]:
    """Return requests with schemas of many integers; no two are the same."""

    def requests(model: str) -> Attack:
        for number in itertools.count():
            names = [f"p{number}_{index}" for index in range(num_properties)]
            properties = {name: {"type": "integer", **rules_of(index)} for index, name in enumerate(names)}
            schema = {"type": "object", "properties": properties, "required": names}
            form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
            yield _completions(model, response_format=form)

    return requests


def _patterns(model: str) -> Attack:
    for number in itertools.count():
        patterns = [{"pattern": f"a{{0,{length}}}b{number}"} for length in range(1, 60)]
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"allOf": patterns}}}
        yield _completions(model, response_format=form)


def _large(body_of: large.Attack) -> Callable[[str], Attack]:
    """Return requests that all have the same large body."""
    return lambda model: itertools.repeat(("POST", *body_of(model)))


def _plain(model: str) -> Attack:
    while True:
        yield _completions(model)


ATTACKS = {
    # Successful requests occupy places in the batch, as any traffic does. These are few enough for the batch.
    "no attack, but more requests": AttackPlan(_plain, 4),
    "grammars of 30 levels": AttackPlan(grammars_of(30), 60),
    "grammars of 19 levels": AttackPlan(grammars_of(19), 4),
    "bounded integers": AttackPlan(
        _schemas(lambda index: {"minimum": index - 2**53, "maximum": 2**53 - 7 * index}, 300), 20
    ),
    "multiples": AttackPlan(_schemas(lambda index: {"multipleOf": 9_000 + index}, 100), 20),
    "patterns that must all match": AttackPlan(_patterns, 10),
    "9 MB of token ids": AttackPlan(_large(large.token_ids), 16),
    "400,000 names of metadata": AttackPlan(_large(large.metadata_names), 16),
    "700,000 unknown names": AttackPlan(_large(large.unknown_names), 16),
    "800,000 combining marks": AttackPlan(_large(large.combining_marks), 16),
    "9 MB of text": AttackPlan(_large(large.wide_text), 16),
    "10 MB of spaces": AttackPlan(_large(large.spaces), 4),
}


@dataclass(frozen=True, slots=True)
class Phase:
    """The answers to healthy clients and attackers in some seconds."""

    latencies_s: Sequence[float]
    healthy_statuses: Counter[int]
    attack_statuses: Counter[int]
    peak_bytes: dict[str, int]  # by process

    @property
    def p99_s(self) -> float:
        """Of the healthy requests."""
        return float(np.percentile(self.latencies_s, 99))


async def run_phase(server: Server, plan: AttackPlan | None, seconds: float) -> Phase:
    """Send healthy requests for some seconds, with or without an attack."""
    latencies_s: list[float] = []
    healthy, attack = Counter[int](), Counter[int]()
    peak_bytes: dict[str, int] = {}
    start_s = time.monotonic()
    method_path_body = _completions(server.target.model, max_tokens=_HEALTHY_TOKENS)

    async with client_of(server.target.url) as http, client_of(server.target.url) as attacker:

        async def send_healthy() -> None:
            while time.monotonic() - start_s < seconds:
                sent_s = time.monotonic()
                healthy[await _status(http, *method_path_body)] += 1
                latencies_s.append(time.monotonic() - sent_s)

        async def attack_with(requests: Attack) -> None:
            while True:
                attack[await _status(attacker, *next(requests))] += 1

        async def watch_memory() -> None:
            while True:
                for name, memory in server.processes.memory().items():
                    peak_bytes[name] = max(peak_bytes.get(name, 0), memory.largest_rss_bytes)
                await asyncio.sleep(0.2)

        background = [asyncio.create_task(watch_memory())]
        if plan is not None:
            requests = plan.requests(server.target.model)
            background += [asyncio.create_task(attack_with(requests)) for _ in range(plan.concurrency)]
        await asyncio.gather(*(send_healthy() for _ in range(_NUM_HEALTHY)))
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
    return Phase(latencies_s, healthy, attack, peak_bytes)


async def _status(http: aiohttp.ClientSession, method: str, path: str, body: bytes) -> int:
    """Return the status of an answer, or 0 without an answer."""
    try:
        async with http.request(method, path, data=body, headers={"Content-Type": "application/json"}) as response:
            await response.read()
            return response.status
    except aiohttp.ClientError:
        return 0


async def compare(server: Server, plan: AttackPlan, seconds: float, num_runs: int) -> list[tuple[Phase, Phase]]:
    """Return the phases of each run: without and with the attack."""
    phases = []
    for _ in range(num_runs):
        peace = await run_phase(server, None, seconds)
        phases.append((peace, await run_phase(server, plan, seconds)))
    return phases


def row_of(name: str, phases: Sequence[tuple[Phase, Phase]]) -> tuple[str, bool]:
    """Return a table's row, and whether the attack stays within the bounds."""
    peace_s, attack_s = (median(phase[side].p99_s for phase in phases) for side in (0, 1))
    statuses = sum((phase.healthy_statuses for _, phase in phases), Counter[int]())
    num_failed = sum(count for status, count in statuses.items() if status == 0 or status >= 500)
    attacker = sum((phase.attack_statuses for _, phase in phases), Counter[int]())
    processes = sorted({process for pair in phases for phase in pair for process in phase.peak_bytes})
    memory = ", ".join(
        f"{process} {max(a.peak_bytes.get(process, 0) for _, a in phases) / 1e6:.0f} MB" for process in processes
    )
    is_within = not num_failed and attack_s <= max(MAX_RATIO * peace_s, peace_s + MAX_EXTRA_S)
    answered = ", ".join(f"{count} x {status}" for status, count in sorted(attacker.items())) or "none"
    figures = f"{peace_s * 1e3:.0f} ms | {attack_s * 1e3:.0f} ms | {num_failed} of {statuses.total()} | {answered}"
    return f"| {name} | {figures} | {memory} | {'yes' if is_within else 'NO'} |", is_within


def main() -> int:
    """Print a table; return 1 if an attack exceeds the bounds."""
    parser = argparse.ArgumentParser(prog="python -m tests.load.attacks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="of each phase (%(default)s)")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="of each attack (%(default)s)")
    parser.add_argument("--only", choices=ATTACKS, action="append", metavar="ATTACK", help="run this one; repeatable")
    options = parser.parse_args()
    is_fine = True
    columns = ("attack", "p99 without", "p99 with", "failed", "attackers got", "peak memory", "within bounds")
    sys.stdout.write(f"| {' | '.join(columns)} |\n{'| --- ' * len(columns)}|\n")
    for name in options.only or ATTACKS:
        with ExitStack() as stack:  # each attack has a new server
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            factory = ServerFactory(folder, Path(os.devnull), num_threads=1)
            server = stack.enter_context(factory.running(Setup(runtime="llama_cpp", max_sequences=8)))[OURS]
            phases = asyncio.run(compare(server, ATTACKS[name], options.seconds, options.runs))
        row, is_within = row_of(name, phases)
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()
        is_fine = is_fine and is_within
    return 0 if is_fine else 1


if __name__ == "__main__":
    sys.exit(main())
