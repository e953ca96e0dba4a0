"""Workers and the admission process, over a real Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from frontend.errors import APIError, QueueFull, RateLimited, ServerError
from frontend.gateway.admission import Admission, Bounds
from frontend.gateway.counters import MemoryCounters
from frontend.gateway.limiter import LocalLimiter
from frontend.gateway.outage import LimitsUnavailable, OnFailure, Outage
from frontend.gateway.shared_limiter import SharedLimiter, serve_worker
from frontend.gateway.types import AdmissionRequest, Lease
from tests.frontend.gateway.admission_requests import Clock, counted, generation

BOUNDS = Bounds(max_in_flight=1, max_in_flight_prompt_tokens=0, max_queue_wait_s=60.0)


@asynccontextmanager
async def serving(path: Path) -> AsyncIterator[LocalLimiter]:
    """Run the server of an admission process; its end closes all connections."""
    limiter = LocalLimiter(MemoryCounters(Clock()), lambda model: BOUNDS)
    tasks = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            tasks.append(asyncio.create_task(serve_worker(limiter, reader, writer)))
            await asyncio.wait(tasks[-1:])

    server = await asyncio.start_unix_server(serve, path)
    try:
        yield limiter
    finally:
        server.close()
        for task in tasks:
            task.cancel()


@pytest.fixture
async def limiter(tmp_path: Path) -> AsyncIterator[LocalLimiter]:
    async with serving(tmp_path / "s") as limiter:
        yield limiter


@asynccontextmanager
async def worker_of(
    path: Path, on_failure: OnFailure = OnFailure.OPEN, clock: Clock | None = None
) -> AsyncIterator[SharedLimiter]:
    worker = SharedLimiter(str(path / "s"), 60.0, Outage("the admission process", on_failure, clock or Clock()))
    yield worker
    await worker.close()


def admission(limiter: LocalLimiter) -> Admission:
    return limiter.admissions["m"]


async def until(is_true: Callable[[], object]) -> None:
    """Run the event loop until a condition holds."""
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110 - the other end of a socket changes it
            await asyncio.sleep(0)


async def test_a_place_is_free_before_its_request_ends(tmp_path: Path, limiter: LocalLimiter) -> None:
    async with worker_of(tmp_path) as worker:
        lease = await worker.acquire(generation())
        worker.leave(lease)
        worker.release(await worker.acquire(generation(is_first=False)), 0)
        await until(lambda: not admission(limiter).num_sequences)
        for _ in range(2):  # the second time the process does not know it, as a restarted one
            worker.release(lease, 5)
        await worker.acquire(generation())
        assert admission(limiter).num_sequences == 1


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (RateLimited("no", code="tokens", headers={"Retry-After": "7"}), None),
        (QueueFull("full", headers={"Retry-After": "3", "x-ratelimit-limit-requests": "9"}), None),
        (LimitsUnavailable(), None),
        (KeyError("secret"), ServerError()),
    ],
)
async def test_an_error_of_the_process_is_raised_in_the_worker(
    tmp_path: Path, limiter: LocalLimiter, monkeypatch: pytest.MonkeyPatch, raised: Exception, expected: APIError | None
) -> None:
    async def acquire(request: AdmissionRequest) -> Lease:
        raise raised

    monkeypatch.setattr(limiter, "acquire", acquire)
    error: Any = expected or raised
    async with worker_of(tmp_path) as worker:
        with pytest.raises(type(error)) as caught:
            await worker.acquire(generation())
    assert vars(caught.value) == vars(error) and caught.value.headers == error.headers


async def test_a_worker_that_dies_leaves_the_queue_and_holds_nothing(tmp_path: Path, limiter: LocalLimiter) -> None:
    async with worker_of(tmp_path) as dying, worker_of(tmp_path) as other:
        await dying.acquire(generation())
        waiting = asyncio.create_task(dying.acquire(generation()))
        await until(lambda: admission(limiter).num_queued)
        await dying.close()
        other.release(await other.acquire(generation()), 0)
        assert (await waiting).id == ""  # without a connection, it is not counted
        await until(lambda: not admission(limiter).num_sequences)


@pytest.mark.parametrize("is_admitted", [False, True])
async def test_a_cancelled_request_leaves_the_queue_and_holds_nothing(
    tmp_path: Path, limiter: LocalLimiter, is_admitted: bool
) -> None:
    async with worker_of(tmp_path) as worker:
        lease = await worker.acquire(generation())
        waiting = asyncio.create_task(worker.acquire(generation()))
        await until(lambda: admission(limiter).num_queued)
        if is_admitted:  # the worker has not read the answer
            worker.release(lease, 0)
            await until(lambda: not admission(limiter).num_queued)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(lambda: not admission(limiter).num_queued)
        if not is_admitted:
            worker.release(lease, 0)
        await until(lambda: not admission(limiter).num_sequences)


async def test_without_the_process_requests_run_uncounted_and_one_warning_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    async with worker_of(tmp_path, OnFailure.OPEN, clock) as worker:
        for _ in range(3):
            worker.release(await worker.acquire(counted(requests_per_minute=1)), 5)
            clock.now_s += 10
        assert caplog.text.count("the admission process does not count") == 1
        async with serving(tmp_path / "s"):
            assert (await worker.acquire(counted(requests_per_minute=1))).readings
            assert caplog.text.count("the admission process counts again") == 1


async def test_without_the_process_requests_are_refused_with_the_choice_closed(tmp_path: Path) -> None:
    async with worker_of(tmp_path, OnFailure.CLOSED) as worker:
        for _ in range(2):
            with pytest.raises(LimitsUnavailable) as caught:
                await worker.acquire(counted(requests_per_minute=1))
            assert (caught.value.status, caught.value.headers["Retry-After"]) == (503, "1")
