"""One sender floods the server, another one sends a request at a time: a table of both, in peace and beside each flood.

Peace and flood alternate. The second sender's requests are of the attacked API.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.frontend.gateway.key_files import KeyFile
from tests.hostile.floods import ATTACKS, EMBEDDER, Attack, Sender
from tests.raw_model import real_embedder
from tests.workshop.load.accounting import Processes, cpu_between
from tests.workshop.load.command import say_heads, say_row
from tests.workshop.load.servers import build, render, serving

_PARTS = ("frontend", "tokenizer", "engine", "detokenizer", "tritonserver")
_QUIET_S = 10.0  # from the end of a flood to the look at the memory that stays


def main() -> int:
    """Run the attacks, and print a row for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.workshop.load.senders", description=__doc__)
    parser.add_argument("--attack", action="append", choices=ATTACKS, help="only this one; may be repeated")
    parser.add_argument("--seconds", type=float, default=10.0, metavar="S", help="of each turn (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, metavar="N", help="of peace, and of flood (%(default)s)")
    parser.add_argument("--no-keys", action="store_true", help="both senders share one address, and have no keys")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        artifacts = [
            build(folder, "demo"),
            build(folder, "bench/minilm", "--checkpoint", str(real_embedder()), "--alias", EMBEDDER),
        ]
        repository = render(folder / "repository", artifacts, "--num-threads", "1")
        keys = KeyFile(folder / "keys.json")
        arguments = [f"--home={folder / 'serve'}"]
        if not options.no_keys:
            keys.add("alice")
            keys.add("bob")
            arguments.append(f"--key-file={keys.path}")
        with serving(repository, folder / "log", *arguments) as (port, processes):
            alice, bob = (Sender(port, {} if options.no_keys else keys.headers(name)) for name in ("alice", "bob"))
            heads = ["attack", "peace: answers/min", "p50", "p99", "flood: answers/min", "p50", "p99", "other statuses"]
            heads += ["the flood's statuses", *(f"{part}: cores, MB" for part in _PARTS), "MB after 10 s, ratio"]
            say_heads(heads)
            for attack in options.attack or ATTACKS:
                measured = asyncio.run(
                    _measured(ATTACKS[attack], alice, bob, processes, options.turns, options.seconds)
                )
                say_row([attack, *measured])
    return 0


@dataclass(slots=True)
class _Turns:
    """The second sender's answers, and the use of the processes meanwhile."""

    latencies_s: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    duration_s: float = 0.0
    cpu_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    largest_bytes: Counter[str] = field(default_factory=Counter)

    def figures(self) -> list[str]:
        p50, p99 = np.percentile(self.latencies_s, (50, 99)) * 1e3
        return [f"{60 * self.statuses[200] / self.duration_s:.0f}", f"{p50:.0f} ms", f"{p99:.0f} ms"]


async def _measured(
    attack: Attack, alice: Sender, bob: Sender, processes: Processes, num_turns: int, seconds: float
) -> list[str]:
    peace, beside, numbers = _Turns(), _Turns(), itertools.count()
    floods: Counter[int] = Counter()
    counting = _CountingSender(alice, floods)
    before_bytes = _bytes_of(processes)
    for _ in range(num_turns):
        await _turn(peace, attack, bob, processes, numbers, seconds)
        flood = asyncio.ensure_future(attack.flood(counting))
        await _turn(beside, attack, bob, processes, numbers, seconds)
        assert not flood.done(), flood
        flood.cancel()
        await asyncio.wait([flood])
        await asyncio.sleep(1)
    await asyncio.sleep(_QUIET_S)
    after_bytes = _bytes_of(processes)["frontend"]
    uses = (f"{beside.cpu_s[each] / beside.duration_s:.2f}, {beside.largest_bytes[each] / 1e6:.0f}" for each in _PARTS)
    return [
        *(*peace.figures(), *beside.figures(), _text({**beside.statuses, 200: 0})),
        *(_text(floods), *uses, f"{after_bytes / 1e6:.0f}, {after_bytes / before_bytes['frontend']:.2f}"),
    ]


class _CountingSender(Sender):
    """Counts the statuses of its answers."""

    def __init__(self, sender: Sender, statuses: Counter[int]) -> None:
        self.__dict__.update(sender.__dict__)
        self._statuses = statuses

    async def send(self, raw: bytes) -> int:
        status = await super().send(raw)
        self._statuses[status] += 1
        return status


async def _turn(
    turns: _Turns, attack: Attack, bob: Sender, processes: Processes, numbers: itertools.count[int], seconds: float
) -> None:
    """Send requests one after the other; the last one is waited for, and counts."""

    async def watch_memory() -> None:
        while True:
            for name, num_bytes in (await asyncio.to_thread(_bytes_of, processes)).items():
                turns.largest_bytes[name] = max(turns.largest_bytes[name], num_bytes)
            await asyncio.sleep(1)

    watching = asyncio.ensure_future(watch_memory())
    before, begin_s = processes.sample(), time.monotonic()
    while (sent_s := time.monotonic()) < begin_s + seconds:
        turns.statuses[await bob.send(attack.request_of(bob, next(numbers)))] += 1
        turns.latencies_s.append(time.monotonic() - sent_s)
    turns.duration_s += time.monotonic() - begin_s
    for name, used_s in cpu_between(before, processes.sample()).items():
        turns.cpu_s[name] += used_s
    watching.cancel()
    await asyncio.wait([watching])


def _bytes_of(processes: Processes) -> Mapping[str, int]:
    return {name: memory.rss_bytes for name, memory in processes.memory().items()}


def _text(statuses: Mapping[int, int]) -> str:
    return ", ".join(f"{count} x {status or 'none'}" for status, count in sorted(statuses.items()) if count) or "-"


if __name__ == "__main__":
    sys.exit(main())
