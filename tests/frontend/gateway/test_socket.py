"""The admission process's socket: both ends of it, over a real one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from frontend.errors import QueueFull, RateLimited
from frontend.gateway.admission import Admission, Bounds, LocalLimiter
from frontend.gateway.outage import LimitsUnavailable, OnFailure, Outage
from frontend.gateway.rates import MemoryRates
from frontend.gateway.socket_limiter import SocketLimiter
from frontend.gateway.socket_server import WorkerConnection
from frontend.gateway.types import Resource
from tests.frontend.gateway.admission_requests import Clock, counted, generation

BOUNDS = Bounds(max_in_flight=1, max_in_flight_prompt_tokens=0, max_queue_wait_s=60.0)


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[LocalLimiter]:
    limiter = LocalLimiter(MemoryRates(Clock()), lambda model: BOUNDS)
    connections: list[WorkerConnection] = []

    def connection() -> WorkerConnection:
        connections.append(WorkerConnection(limiter))
        return connections[-1]

    server = await asyncio.get_running_loop().create_unix_server(connection, str(path))
    try:
        yield limiter
    finally:
        server.close()
        for each in connections:
            if each._transport is not None:
                each._transport.abort()
        await asyncio.sleep(0)


@pytest.fixture
async def limiter(tmp_path: Path) -> AsyncIterator[LocalLimiter]:
    async with serving(tmp_path / "s") as limiter:
        yield limiter


def worker_of(path: Path, on_failure: OnFailure = OnFailure.OPEN, clock: Clock | None = None) -> SocketLimiter:
    return SocketLimiter(str(path / "s"), 60.0, Outage("the admission process", on_failure, clock or Clock()))


def admission(limiter: LocalLimiter) -> Admission:
    return limiter.admissions["m"]


async def until(is_true: Callable[[], object]) -> None:
    """Let the event loop turn until something holds."""
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110 - it waits for the other end of a socket
            await asyncio.sleep(0)


@pytest.mark.usefixtures("limiter")
async def test_two_workers_share_one_limit(tmp_path: Path) -> None:
    workers = [worker_of(tmp_path), worker_of(tmp_path)]
    request = counted(num_tokens=30, tokens_per_minute=100, requests_per_minute=2)
    lease = await workers[0].acquire(request)
    assert {(each.resource, each.remaining) for each in lease.readings} == {
        (Resource.REQUESTS, 1),
        (Resource.TOKENS, 70),
    }
    workers[0].release(lease, 10)
    await workers[1].acquire(request)
    with pytest.raises(RateLimited) as caught:
        await workers[0].acquire(request)
    assert (caught.value.code, caught.value.headers["retry-after-ms"]) == ("requests", "30000")
    assert caught.value.headers["x-ratelimit-remaining-tokens"] == "60"
    for worker in workers:
        await worker.close()


async def test_a_place_goes_from_one_worker_to_the_next(
    tmp_path: Path, limiter: LocalLimiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frontend.gateway.admission._MAX_QUEUED", 1)
    first, second = worker_of(tmp_path), worker_of(tmp_path)
    lease = await first.acquire(generation())
    waiting = asyncio.create_task(second.acquire(generation()))
    await until(lambda: admission(limiter).num_queued)
    with pytest.raises(QueueFull):
        await first.acquire(generation())
    first.release(lease, 5)
    second.release(await waiting, 5)
    await until(lambda: not admission(limiter).num_requests)
    await first.close()
    await second.close()


async def test_a_worker_that_dies_gives_back_what_it_held_and_leaves_the_queue(
    tmp_path: Path, limiter: LocalLimiter
) -> None:
    dying, other = worker_of(tmp_path), worker_of(tmp_path)
    await dying.acquire(generation())
    waiting = asyncio.create_task(dying.acquire(generation()))
    await until(lambda: admission(limiter).num_queued)
    await dying.close()
    other.release(await other.acquire(generation()), 0)
    assert (await waiting).id == ""  # its process is gone, so nobody counts it
    await until(lambda: not admission(limiter).num_requests)
    await other.close()


async def test_who_hangs_up_while_waiting_leaves_the_queue(tmp_path: Path, limiter: LocalLimiter) -> None:
    worker = worker_of(tmp_path)
    lease = await worker.acquire(generation())
    waiting = asyncio.create_task(worker.acquire(generation()))
    await until(lambda: admission(limiter).num_queued)
    waiting.cancel()
    await until(lambda: not admission(limiter).num_queued)
    worker.release(lease, 0)
    await until(lambda: not admission(limiter).num_requests)
    await worker.close()


async def test_who_hangs_up_when_its_turn_is_on_the_way_holds_nothing(tmp_path: Path, limiter: LocalLimiter) -> None:
    worker = worker_of(tmp_path)
    lease = await worker.acquire(generation())
    waiting = asyncio.create_task(worker.acquire(generation()))
    await until(lambda: admission(limiter).num_queued)
    worker.release(lease, 0)
    await until(lambda: not admission(limiter).num_queued)  # the answer is written, and not yet read
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await until(lambda: not admission(limiter).num_requests)
    await worker.close()


async def test_without_the_process_requests_go_on_uncounted_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    worker = worker_of(tmp_path, OnFailure.OPEN, clock)
    for _ in range(3):
        worker.release(await worker.acquire(counted(requests_per_minute=1)), 5)
        clock.now_s += 10
    assert caplog.text.count("the admission process does not answer") == 1
    async with serving(tmp_path / "s"):
        assert (await worker.acquire(counted(requests_per_minute=1))).readings
        assert caplog.text.count("the admission process answers again") == 1
        await worker.close()


async def test_without_the_process_requests_are_refused_where_that_was_chosen(tmp_path: Path) -> None:
    worker = worker_of(tmp_path, OnFailure.CLOSED)
    for _ in range(2):
        with pytest.raises(LimitsUnavailable) as caught:
            await worker.acquire(counted(requests_per_minute=1))
        assert (caught.value.status, caught.value.headers["Retry-After"]) == (503, "1")


async def test_a_process_that_comes_back_is_found_again(tmp_path: Path) -> None:
    clock = Clock()
    worker = worker_of(tmp_path, OnFailure.CLOSED, clock)
    async with serving(tmp_path / "s"):
        lease = await worker.acquire(generation())
    (tmp_path / "s").unlink(missing_ok=True)
    async with serving(tmp_path / "s") as again:
        clock.now_s += 10
        await until(lambda: worker._connection is not None and worker._connection.is_lost)
        second = await worker.acquire(generation())
        worker.release(lease, 0)  # of the process before: nobody's place
        worker.release(second, 0)
        await until(lambda: not admission(again).num_requests)
        await worker.close()
