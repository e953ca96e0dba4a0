"""Clients that stop reading, on the real stack."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
import uvloop

from tests.frontend.connections.raw_http import narrow_connection
from tests.hostile.requests import CHAT, completion, post
from tests.integration.api import Api
from tests.integration.conftest import running_stack
from tests.integration.edge import exchange, serving
from tests.integration.stack import FLOOD_MODEL, MAX_SEQUENCES, MAX_SEQUENCES_FLOOD, PACED_MODEL, Stack
from tests.waiting import wait_until

BODY = {"model": FLOOD_MODEL, "messages": [{"role": "user", "content": "x"}]}
MAX_TOKENS = 1900  # of each completion: nineteen seconds of the paced model
NUM_CHOICES = 4
NUM_ROUNDS = 4
MAX_BYTES_PER_READER = 500_000
STALLED_READER = "frontend.connections.connection:STALLED_READER_S=0.3"


def test_a_reader_that_stalls_frees_the_engine_and_leaves_others_alone(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.connections.connection.STALLED_READER_S", 0.3)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        alone, beside = runner.run(stall(stack))
    assert alone
    assert alone == beside
    stack.wait_until_idle(PACED_MODEL)


async def stall(stack: Stack) -> tuple[bytes, bytes]:
    """Let a client stall until it is cut; return what another one was answered before and meanwhile."""
    async with serving(stack) as port:
        alone = await exchange(port, completion(temperature=0, max_tokens=20))
        num_cancelled = stack.stats(PACED_MODEL).num_cancelled + MAX_SEQUENCES
        with narrow_connection(port) as client:
            messages = [{"role": "user", "content": "x"}]
            body = {"model": PACED_MODEL, "messages": messages, "stream": True, "n": MAX_SEQUENCES}
            client.sendall(post(body | {"max_tokens": MAX_TOKENS}, CHAT))
            beside = await exchange(port, completion(temperature=0, max_tokens=20))
            await asyncio.to_thread(
                wait_until, lambda: is_cancelled(stack, num_cancelled), "the generation is cancelled"
            )
    return text_of(alone), text_of(beside)


def is_cancelled(stack: Stack, num_cancelled: int) -> bool:
    """Whether this number of sequences was cancelled."""
    return stack.stats(PACED_MODEL).num_cancelled >= num_cancelled


def text_of(answer: bytes) -> bytes:
    """Return the completion's text as it stands in the answer."""
    return answer.partition(b'"text":')[2].partition(b"}")[0]


@pytest.fixture
def flood(flood_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack whose frontend cuts stalled readers soon, and whose engine makes more tokens than they read."""
    with running_stack(flood_repository, tmp_path_factory, constants=[STALLED_READER]) as stack:
        yield stack


def test_many_readers_that_stall_are_cut_counted_and_cost_little_memory(flood: Stack) -> None:
    frontend = psutil.Process(flood.launcher.frontend.pid)
    num_readers = MAX_SEQUENCES_FLOOD // NUM_CHOICES
    # The first requests of each kind take memory that they keep.
    Api(flood.url).post(CHAT, BODY)
    Api(flood.url).post(CHAT, BODY | {"stream": True, "n": NUM_CHOICES, "max_tokens": MAX_TOKENS})
    held, peaks = [frontend.memory_info().rss], []
    for number in range(1, NUM_ROUNDS + 1):
        peaks.append(stalled_round(flood, frontend, num_readers, num_cut=number * num_readers))
        held.append(frontend.memory_info().rss)
    assert max(peaks) - held[0] < num_readers * MAX_BYTES_PER_READER, (held, peaks)
    assert held[-1] - held[1] < num_readers * MAX_BYTES_PER_READER / 2, (held, peaks)  # what came first may stay
    stats = flood.stats(FLOOD_MODEL)
    assert stats.num_cancelled == NUM_ROUNDS * MAX_SEQUENCES_FLOOD
    assert frontend.num_fds() < num_readers + 60


def stalled_round(flood: Stack, frontend: psutil.Process, num_readers: int, num_cut: int) -> int:
    """Have readers stall until each is cut; return the most memory that the frontend had meanwhile, in bytes."""
    port = int(flood.url.rsplit(":", 1)[1])
    raw = post(BODY | {"stream": True, "n": NUM_CHOICES, "max_tokens": MAX_TOKENS}, CHAT)
    peak = 0
    with ExitStack() as stack:
        for _ in range(num_readers):
            stack.enter_context(narrow_connection(port)).sendall(raw)

        def is_over() -> bool:
            nonlocal peak
            peak = max(peak, frontend.memory_info().rss)
            return cancelled(flood) == num_cut

        wait_until(is_over, "every reader is cut, and counted")
    flood.wait_until_idle(FLOOD_MODEL)
    return peak


def cancelled(flood: Stack) -> int:
    """Return the metric of requests that their clients left."""
    metrics = Api(flood.url).get("/metrics").body
    found = re.search(rf'^conch_cancelled_total{{model="{FLOOD_MODEL}"}} ([0-9.]+)$', metrics, re.MULTILINE)
    return int(float(found[1])) if found else 0
