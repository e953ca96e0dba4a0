"""Agents with long histories at two replicas: by the routing of prompts, by others' routers, and at one replica.

`python -m tests.workshop.load.fleet` serves SmolLM2. Each agent has a history of its own, and in each turn sends it
again with the answer and some words more. One replica has as many slots as both together. `--one-shots` adds clients
with short chats of one turn. Shares and times count from the second turn on, which begins when all first ones are over.

SMG's router stands before the same two replicas. Dynamo's has mock engines with as much memory, which compute nothing:
its times say nothing about engines.
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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from build_engines.llama_cpp.gguf_tokenizer import write_tokenizer
from frontend.launcher.triton_server import ADDRESS
from tests.raw_model import real_model
from tests.workshop.load import dynamo, peers, smg
from tests.workshop.load.command import parsed, parser_of, say, say_heads, say_row
from tests.workshop.load.machine import describe_machine, summary_line
from tests.workshop.load.servers import CHECKPOINT, DYNAMO_DIR, build, render, replicas

_MODEL, _WINDOW, _BLOCK_TOKENS, _NUM_OUTPUT_TOKENS = "smollm2", 6144, 16, 24
_SMG_DIR = Path(".conch", "smg")  # its environment, which is kept
_BY_LOAD = "frontend.triton.routing:_LOAD_WEIGHT=1000000"  # more than a whole prompt can weigh
_WORDS = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8").split()


@dataclass(frozen=True, slots=True)
class _Fleet:
    """Replicas that are measured."""

    url: str
    model: str = _MODEL
    metrics_ports: tuple[int, ...] = ()  # of the replicas; Dynamo's answers name their worker instead

    def work(self) -> list[float]:
        """Return the requests that each engine has finished."""
        found = []
        for port in self.metrics_ports:
            with urllib.request.urlopen(f"http://{ADDRESS}:{port}/metrics") as answer:
                lines = answer.read().decode().splitlines()
            found.append(sum(float(line.split()[-1]) for line in lines if line.startswith("conch_engine_finished")))
        return found


@dataclass(slots=True)
class _Clients:
    """All agents, and what their turns took."""

    session: aiohttp.ClientSession
    model: str
    first_token_s: list[float] = field(default_factory=list)
    num_tokens: int = 0
    num_cached: int = 0
    workers: Counter[int] = field(default_factory=Counter)  # the requests of each, where answers name it
    errors: list[str] = field(default_factory=list)

    async def agent(self, number: int, begun: asyncio.Barrier, options: argparse.Namespace) -> None:
        """Chat for all turns. The second one begins when all agents have had their first."""
        draws = random.Random(number)
        history = " ".join(draws.choices(_WORDS, k=options.words))
        messages = [{"role": "system", "content": f"You are agent {number}."}, {"role": "user", "content": history}]
        for turn in range(options.turns):
            messages.append({"role": "assistant", "content": await self._ask(messages, is_counted=turn > 0)})
            messages.append({"role": "user", "content": " ".join(draws.choices(_WORDS, k=20))})
            if not turn:
                await begun.wait()
            await asyncio.sleep(draws.expovariate(1 / options.gap))

    async def one_shots(self, number: int, gap_s: float) -> None:
        """Ask one question after another until cancelled."""
        draws = random.Random(-number)
        while True:
            await asyncio.sleep(draws.expovariate(1 / gap_s))
            question = " ".join(draws.choices(_WORDS, k=40))
            await self._ask([{"role": "user", "content": question}], is_counted=False)

    async def _ask(self, messages: list[dict[str, Any]], *, is_counted: bool) -> str:
        body = {"model": self.model, "messages": messages, "max_tokens": _NUM_OUTPUT_TOKENS, "temperature": 0}
        body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        if self.model == dynamo.MODEL:
            body |= {"nvext": {"extra_fields": ["worker_id"]}}
        begin_s, text, first_s, usage = time.monotonic(), "", 0.0, None
        async with self.session.post("/v1/chat/completions", json=body) as response:
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line.removeprefix(b"data: "))
                if "choices" not in event:
                    self.errors.append(str(event))
                    break
                text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
                first_s = first_s or (time.monotonic() if text else 0.0)
                usage = event.get("usage") or usage
                if worker := (event.get("nvext") or {}).get("worker_id"):
                    self.workers[worker["decode_worker_id"]] += 1
        if is_counted and usage:
            self.first_token_s.append(first_s - begin_s)
            self.num_tokens += usage["prompt_tokens"]
            self.num_cached += usage["prompt_tokens_details"]["cached_tokens"]
        return text


async def _run(fleet: _Fleet, options: argparse.Namespace) -> list[str]:
    """Return a row: share of cached tokens, first tokens, seconds, and the largest share of the work."""
    before, begin_s = fleet.work(), time.monotonic()
    no_limit = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(fleet.url, connector=connector, timeout=no_limit) as session:
        clients, begun = _Clients(session, fleet.model), asyncio.Barrier(options.agents)
        numbers = range(1, options.one_shots + 1)
        others = [asyncio.create_task(clients.one_shots(number, 60 * options.gap)) for number in numbers]
        await asyncio.gather(*(clients.agent(number, begun, options) for number in range(options.agents)))
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
    work = [after - each for after, each in zip(fleet.work(), before, strict=True)] or list(clients.workers.values())
    times_s = sorted(clients.first_token_s)
    return [
        f"{clients.num_cached / max(1, clients.num_tokens):.3f}",
        f"{statistics.median(times_s):.2f} s",
        f"{times_s[int(0.99 * (len(times_s) - 1))]:.2f} s",
        f"{time.monotonic() - begin_s:.0f} s",
        f"{max(work) / statistics.mean(work):.2f}",
        str(len(clients.errors)),
    ]


@contextmanager
def _ours(
    folder: Path, artifact: Path, options: argparse.Namespace, num_replicas: int, constants: Sequence[str] = ()
) -> Iterator[_Fleet]:
    """Run replicas behind one frontend."""
    repository = _repository(folder, artifact, options, num_replicas)
    with replicas(repository, folder, _log(options), num_replicas, *constants) as fleet:
        yield _Fleet(fleet.url, metrics_ports=fleet.metrics_ports)


@contextmanager
def _smg(folder: Path, artifact: Path, options: argparse.Namespace) -> Iterator[_Fleet]:
    """Run replicas with a frontend each, behind SMG's router."""
    repository = _repository(folder, artifact, options, 2)
    with ExitStack() as exits:
        homes = [folder / "1", folder / "2"]
        for home in homes:
            home.mkdir()
        fleets = [exits.enter_context(replicas(repository, home, _log(options), 1)) for home in homes]
        log = exits.enter_context(_log(options).open("a"))
        url = exits.enter_context(smg.running(_SMG_DIR, [each.url for each in fleets], log))
        yield _Fleet(url, metrics_ports=tuple(port for each in fleets for port in each.metrics_ports))


@contextmanager
def _dynamo(folder: Path, options: argparse.Namespace) -> Iterator[_Fleet]:
    """Run Dynamo's router with two mock engines."""
    python = peers.installed_python(DYNAMO_DIR, dynamo.PINS)
    checkpoint, num_slots = folder / "tokenizer", options.slots // 2
    checkpoint.mkdir()
    write_tokenizer(real_model(), checkpoint)
    config = json.loads((CHECKPOINT / "config.json").read_text(encoding="utf-8"))
    config |= {"max_position_embeddings": _WINDOW, "vocab_size": 49_152}
    (checkpoint / "config.json").write_text(json.dumps(config), encoding="utf-8")
    engine = (
        "--block-size",
        str(_BLOCK_TOKENS),
        "--num-gpu-blocks-override",
        str(num_slots * _WINDOW // _BLOCK_TOKENS),
    )
    with (
        _log(options).open("a") as log,
        dynamo.running(
            python,
            folder / "found",
            checkpoint,
            num_slots,
            log,
            "--router-mode",
            "kv",
            is_paced=True,
            num_engines=2,
            engine_options=engine,
        ) as (url, _),
    ):
        time.sleep(5.0)  # until the frontend knows both
        yield _Fleet(url, dynamo.MODEL)


def _repository(folder: Path, artifact: Path, options: argparse.Namespace, num_replicas: int) -> Path:
    """Render the repository of each replica: together they have the slots and the threads of one."""
    num_slots, num_threads = options.slots // num_replicas, max(1, 2 // num_replicas)
    engine = ["--max-sequences", str(num_slots), "--num-threads", str(num_threads)]
    return render(folder / "repository", [artifact], *engine)


def _log(options: argparse.Namespace) -> Path:
    return options.output / "fleet.log"


def main() -> int:
    """Run the command line."""
    parser = parser_of("fleet", __doc__)
    parser.add_argument("--agents", type=int, default=8, metavar="N", help="(%(default)s)")
    parser.add_argument("--turns", type=int, default=20, metavar="N", help="of each agent (%(default)s)")
    parser.add_argument("--words", type=int, default=1500, metavar="N", help="of each history (%(default)s)")
    parser.add_argument("--gap", type=float, default=1.0, metavar="S", help="mean pause between turns (%(default)s)")
    parser.add_argument("--slots", type=int, default=8, metavar="N", help="of all replicas (%(default)s)")
    parser.add_argument(
        "--one-shots",
        type=int,
        default=0,
        metavar="N",
        help="clients with short chats, with pauses sixty times as long (%(default)s)",
    )
    parser.add_argument("--only", default="", metavar="WORDS", help="the rows with these words")
    options = parsed(parser)
    say(summary_line(describe_machine()))
    say_heads(["", "cached", "first token (median)", "99 %", "in all", "most work / mean", "errors"])
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        artifact = build(Path(name), _MODEL, "--gguf", str(real_model()), "--context-window", str(_WINDOW))
        ours = partial(_ours, artifact=artifact, options=options)
        fleets: dict[str, Callable[[Path], AbstractContextManager[_Fleet]]] = {
            "two replicas, by prompts": partial(ours, num_replicas=2),
            "two replicas, by the fewest requests": partial(ours, num_replicas=2, constants=(_BY_LOAD,)),
            "two replicas, by SMG's router": partial(_smg, artifact=artifact, options=options),
            "one replica": partial(ours, num_replicas=1),
            "two mock engines, by Dynamo's router": partial(_dynamo, options=options),
        }
        for number, (title, running) in enumerate(fleets.items()):
            if options.only in title:
                (folder := Path(name) / str(number)).mkdir()
                with running(folder) as fleet:
                    say_row([title, *asyncio.run(_run(fleet, options))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
