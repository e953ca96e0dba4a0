"""Agents with long histories at two replicas, by the routing of prompts and by the fewest requests, and at one replica.

`python -m tests.workshop.load.fleet` serves SmolLM2. Each agent has a history of its own, and in each turn sends it
again with the answer and some words more. One replica has as many slots as both together. `--one-shots` adds clients
with short chats of one turn. The share of cached tokens counts from the second turn on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from frontend.launcher.triton_server import ADDRESS
from tests.raw_model import real_model
from tests.workshop.load.command import parsed, parser_of, say, say_heads, say_row
from tests.workshop.load.machine import describe_machine, summary_line
from tests.workshop.load.servers import Replicas, build, render, replicas

_MODEL, _WINDOW, _NUM_OUTPUT_TOKENS = "smollm2", 6144, 24
_BY_LOAD = "frontend.triton.routing:_LOAD_WEIGHT=1000000"  # more than a whole prompt can weigh
_WORDS = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8").split()


@dataclass(slots=True)
class _Outcome:
    """What the turns of all agents took."""

    first_token_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_cached: int = 0
    errors: list[str] = field(default_factory=list)


def _work(fleet: Replicas) -> list[float]:
    """Return the requests that each engine has finished."""
    found = []
    for port in fleet.metrics_ports:
        with urllib.request.urlopen(f"http://{ADDRESS}:{port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        found.append(sum(float(line.split()[-1]) for line in lines if line.startswith("conch_engine_finished")))
    return found


async def _ask(session: aiohttp.ClientSession, messages: list[dict[str, Any]], outcome: _Outcome | None) -> str:
    body = {"model": _MODEL, "messages": messages, "max_tokens": _NUM_OUTPUT_TOKENS, "temperature": 0}
    body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    begin_s, text, first_s = time.monotonic(), "", 0.0
    async with session.post("/v1/chat/completions", json=body) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                event = json.loads(line.removeprefix(b"data: "))
                if "choices" not in event:
                    if outcome is not None:
                        outcome.errors.append(str(event))
                    break
                text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
                first_s = first_s or (time.monotonic() if text else 0.0)
                if outcome is not None and (usage := event.get("usage")) and len(messages) > 2:
                    outcome.num_tokens += usage["prompt_tokens"]
                    outcome.num_cached += usage["prompt_tokens_details"]["cached_tokens"]
                    outcome.first_token_s.append(first_s - begin_s)
    return text


async def _agent(session: aiohttp.ClientSession, number: int, options: argparse.Namespace, outcome: _Outcome) -> None:
    draws = random.Random(number)
    history = " ".join(draws.choices(_WORDS, k=options.words))
    messages = [{"role": "system", "content": f"You are agent {number}."}, {"role": "user", "content": history}]
    for turn in range(options.turns):
        messages.append({"role": "assistant", "content": await _ask(session, messages, outcome if turn else None)})
        messages.append({"role": "user", "content": " ".join(draws.choices(_WORDS, k=20))})
        await asyncio.sleep(draws.expovariate(1 / options.gap))


async def _one_shots(session: aiohttp.ClientSession, number: int) -> None:
    draws = random.Random(-number)
    while True:
        await _ask(session, [{"role": "user", "content": " ".join(draws.choices(_WORDS, k=40))}], None)


async def _run(fleet: Replicas, options: argparse.Namespace) -> list[str]:
    """Return a row: share of cached tokens, first tokens, seconds, and the largest share of the work."""
    outcome, before, begin_s = _Outcome(), _work(fleet), time.monotonic()
    async with aiohttp.ClientSession(fleet.url, connector=aiohttp.TCPConnector(limit=0)) as session:
        others = [asyncio.create_task(_one_shots(session, number)) for number in range(1, options.one_shots + 1)]
        await asyncio.gather(*(_agent(session, number, options, outcome) for number in range(options.agents)))
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    work = [after - each for after, each in zip(_work(fleet), before, strict=True)]
    times_s = sorted(outcome.first_token_s)
    return [
        f"{outcome.num_cached / max(1, outcome.num_tokens):.3f}",
        f"{statistics.median(times_s):.2f} s",
        f"{times_s[int(0.99 * (len(times_s) - 1))]:.2f} s",
        f"{time.monotonic() - begin_s:.0f} s",
        f"{max(work) / statistics.mean(work):.2f}",
        str(len(outcome.errors)),
    ]


def main() -> int:
    """Run the command line."""
    parser = parser_of("fleet", __doc__)
    parser.add_argument("--agents", type=int, default=8, metavar="N", help="(%(default)s)")
    parser.add_argument("--turns", type=int, default=20, metavar="N", help="of each agent (%(default)s)")
    parser.add_argument("--words", type=int, default=1500, metavar="N", help="of each history (%(default)s)")
    parser.add_argument("--gap", type=float, default=1.0, metavar="S", help="mean pause between turns (%(default)s)")
    parser.add_argument("--slots", type=int, default=12, metavar="N", help="of all replicas (%(default)s)")
    parser.add_argument("--one-shots", type=int, default=0, metavar="N", help="clients with short chats (%(default)s)")
    options = parsed(parser)
    say(summary_line(describe_machine()))
    say_heads(["", "cached", "first token (median)", "99 %", "in all", "most work / mean", "errors"])
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        artifact = build(Path(name), _MODEL, "--gguf", str(real_model()), "--context-window", str(_WINDOW))
        for title, num_replicas, constants in (
            ("two replicas, by prompts", 2, ()),
            ("two replicas, by the fewest requests", 2, (_BY_LOAD,)),
            ("one replica", 1, ()),
        ):
            folder = Path(name) / title.replace(" ", "-")
            folder.mkdir()
            num_slots, num_threads = options.slots // num_replicas, max(1, 2 // num_replicas)
            engine = ["--max-sequences", str(num_slots), "--num-threads", str(num_threads)]
            repository = render(folder / "repository", [artifact], *engine)
            with replicas(repository, folder, options.output / "fleet.log", num_replicas, *constants) as fleet:
                say_row([title, *asyncio.run(_run(fleet, options))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
