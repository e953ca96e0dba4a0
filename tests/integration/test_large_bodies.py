"""Large hostile bodies: healthy clients do not notice sixteen at once, nor slow ones of another key."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import aiohttp
import pytest

from tests.hostile import large
from tests.integration.replicas import frontend_of
from tests.integration.stack import PACED_MODEL, Stack
from tests.processes import max_memory_bytes
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.alone

NUM_AT_ONCE = 16
NUM_HEALTHY = 4  # clients
MAX_MEMORY_BYTES = 2**30  # of the chart's frontend


async def test_healthy_clients_do_not_notice_large_bodies(paced_stack: Stack, tmp_path: Path) -> None:
    # Such bodies kept the event loop busy for seconds: the engine's answers were read too late, and it was given up.
    with frontend_of([paced_stack], tmp_path) as frontend:
        timeout = aiohttp.ClientTimeout(DEADLINE_S)
        async with aiohttp.ClientSession(
            frontend.url, connector=aiohttp.TCPConnector(limit=0), timeout=timeout
        ) as http:
            found = {attack.__name__: await statuses_beside(http, attack) for attack in large.ATTACKS}
        memory_bytes = max_memory_bytes(frontend.process.pid)
        log = frontend.log
    assert {name: healthy for name, (_, healthy) in found.items() if healthy != {200}} == {}
    answered = {name: attackers for name, (attackers, _) in found.items()}
    assert answered == {name: {200} if name == "spaces" else {400} for name in answered}
    assert memory_bytes < MAX_MEMORY_BYTES
    assert "is lost" not in log
    paced_stack.wait_until_idle(PACED_MODEL)


async def statuses_beside(http: aiohttp.ClientSession, attack: large.Attack) -> tuple[set[int], set[int]]:
    """Return how the attackers' requests were answered, and those of healthy clients meanwhile."""
    path, body = attack(PACED_MODEL)
    attackers = asyncio.gather(*(status_of(http, path, io.BytesIO(body)) for _ in range(NUM_AT_ONCE)))
    healthy: set[int] = set()

    async def client() -> None:
        while not attackers.done():
            healthy.add(await status_of(http, "/v1/completions", io.BytesIO(HEALTHY)))

    await asyncio.gather(*(client() for _ in range(NUM_HEALTHY)))
    return set(await attackers), healthy


HEALTHY = b'{"model":"%s","prompt":"Hello","max_tokens":4}' % PACED_MODEL.encode()


async def status_of(http: aiohttp.ClientSession, path: str, body: io.BytesIO) -> int:
    """Send a body and return the status."""
    async with http.post(path, data=body, headers={"Content-Type": "application/json"}) as response:
        await response.read()
        return response.status
