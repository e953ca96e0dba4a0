"""One sender floods a resource; another one's requests take at most three times as long as in peace, or 250 ms longer.

Peace and attack alternate, and the medians of their turns are compared, so a busy machine counts on both sides; more
turns follow where the first ones exceed the limit. The percentile is the 90th: a turn has too few answers for a 99th.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from frontend.settings import Settings
from tests.frontend.gateway.key_files import KeyFile
from tests.hostile.floods import ATTACKS, Sender, short
from tests.hostile.requests import MODEL
from tests.integration.conftest import running_stack
from tests.integration.operations import Server
from tests.integration.replicas import until
from tests.integration.stack import Stack

pytestmark = pytest.mark.alone

MIN_TURNS, MAX_TURNS, TURN_S = 3, 9, 1.0
FOUND_S = 10.0  # docs/faults.md
MAX_RATIO, MAX_EXTRA_S = 3.0, 0.25  # of a latency beside a flood: the larger of the two bounds holds


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two keys, `alice` and `bob`. Its frontend has the default settings."""
    key_file = KeyFile(tmp_path_factory.mktemp("senders") / "keys.json")
    for name in ("alice", "bob"):
        key_file.add(name)
    constants = ("frontend.triton.health_monitor:TEXT_STAGE_TIMEOUT_S=4",)  # as it is by default
    with running_stack(repository, tmp_path_factory, Settings(key_file=str(key_file.path)), constants) as stack:
        yield Server(stack, "", key_file)


# The other attacks take minutes, as `tests.workshop.load.senders` does, which also has a model that embeds.
_IN_EACH_RUN = {
    *("one wide request", "lists of prompts", "slow readers", "hang-ups", "refusals", "grammars", "large bodies"),
    *("large bodies beside another", "unfinished bodies", "token ids to detokenize", "texts to tokenize"),
    *("silent connections", "schemas of Responses", "log probabilities", "an ambiguous grammar", "counts of Messages"),
    *("conversations to truncate", "documents without an end"),
}
NAMES = [
    pytest.param(name, marks=() if name in _IN_EACH_RUN else pytest.mark.faults)
    for name in ATTACKS
    if name != "vectors"
]


@pytest.mark.parametrize("name", NAMES)
async def test_a_flood_of_one_sender_hardly_slows_another_one(server: Server, name: str) -> None:
    attack = ATTACKS[name]
    alice, bob = senders(server)
    processes = processes_of(server.stack)
    numbers = itertools.count()  # no request has the grammar of another one
    statuses: set[int] = set()

    async def turn() -> float:
        """Return the 90th percentile of the latencies."""
        latencies_s, begin_s = [], time.monotonic()
        while (sent_s := time.monotonic()) < begin_s + TURN_S:
            statuses.add(await bob.send(attack.request_of(bob, next(numbers))))
            latencies_s.append(time.monotonic() - sent_s)
        return float(np.percentile(latencies_s, 90))

    peace_s: list[float] = []
    attack_s: list[float] = []

    def is_slow() -> bool:
        return median(attack_s) > max(MAX_RATIO * median(peace_s), median(peace_s) + MAX_EXTRA_S)

    while len(attack_s) < MIN_TURNS or (is_slow() and len(attack_s) < MAX_TURNS):
        peace_s.append(await turn())
        flood = asyncio.ensure_future(attack.flood(alice))
        attack_s.append(await turn())
        assert not flood.done(), flood
        flood.cancel()
        await asyncio.wait([flood])
        await asyncio.to_thread(server.stack.wait_until_idle, MODEL)
        assert statuses == {200}
    assert not is_slow(), (peace_s, attack_s)
    assert processes_of(server.stack) == processes
    assert not [line for line in server.stack.log if "is down" in line]


@pytest.mark.faults
async def test_a_stage_that_is_stopped_under_a_flood_is_found(server: Server) -> None:
    """Other executions of a stage that is only busy count as its answer to a health check."""
    alice, bob = senders(server)
    [tokenizer] = server.stack.processes(f"{MODEL}__tokenizer")
    flood = asyncio.ensure_future(ATTACKS["counts of Messages"].flood(alice))
    try:
        for _ in range(3):
            assert await bob.send(short(bob, 0)) == 200
        os.kill(tokenizer, signal.SIGSTOP)
        stopped_s = time.monotonic()
        await until(lambda: any("__tokenizer is down" in line for line in server.stack.log), "the stage is found")
        assert time.monotonic() - stopped_s < FOUND_S
    finally:
        with suppress(ProcessLookupError):
            os.kill(tokenizer, signal.SIGKILL)
        flood.cancel()
        await asyncio.wait([flood])


def senders(server: Server) -> tuple[Sender, Sender]:
    port = int(server.stack.url.rpartition(":")[2])
    alice, bob = (Sender(port, server.key_file.headers(name)) for name in ("alice", "bob"))
    return alice, bob


def processes_of(stack: Stack) -> list[int]:
    """Return Triton and the stages of the model."""
    assert stack.launcher.triton.is_running
    stages = (stack.processes(f"{MODEL}__{stage}") for stage in ("tokenizer", "engine", "detokenizer"))
    return [stack.launcher.triton.pid, *itertools.chain(*stages)]
