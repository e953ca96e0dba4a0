"""Overload: a model at five times its capacity, compared with the unloaded model."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import uvloop

from frontend.settings import Settings
from tests.overload import OVERLOAD, Phase, bodies_of, client_of, compare
from tests.workshop.load.scenarios import OURS, Setup
from tests.workshop.load.servers import Server, ServerFactory

_ITL_MS, _MAX_SEQUENCES = 10.0, 32


def main() -> int:
    """Run the phases with a synthetic engine, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.workshop.load.overload", description=__doc__)
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
