"""Clients that stop reading, on the real stack."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.frontend.connections.raw_http import narrow_connection
from tests.hostile.requests import CHAT, post
from tests.integration.api import Api
from tests.integration.conftest import running_stack
from tests.integration.stack import FLOOD_MODEL, MAX_SEQUENCES_FLOOD, Stack
from tests.waiting import wait_until

BODY = {"model": FLOOD_MODEL, "messages": [{"role": "user", "content": "x"}]}
MAX_TOKENS = 1900  # of each completion: nineteen seconds of the paced model
NUM_CHOICES = 4
NUM_ROUNDS = 3
MAX_BYTES_PER_READER = 500_000
STALLED_READER = "frontend.connections.connection:STALLED_READER_S=0.3"


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
