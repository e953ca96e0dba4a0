"""Counts in a real Redis, shared by replicas."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frontend.errors import RateLimited
from frontend.gateway.admission import Bounds
from frontend.gateway.counters import Amounts, MemoryCounters, counters_of
from frontend.gateway.limiter import LocalLimiter
from frontend.gateway.outage import OnFailure
from frontend.gateway.redis_counters import RedisCounters
from frontend.gateway.types import Lease
from tests.frontend.gateway.admission_requests import Clock, counted, scope
from tests.frontend.gateway.conftest import RedisServer
from tests.waiting import DEADLINE_S

BOUNDS = Bounds(max_in_flight=0, max_in_flight_prompt_tokens=0, max_queue_wait_s=1.0)


class Replica(LocalLimiter):
    """A limiter with its counts in Redis."""

    def __init__(self, url: str, on_failure: OnFailure = OnFailure.CLOSED, clock: Clock | None = None) -> None:
        self.counters = RedisCounters(url, "Redis", on_failure, clock or Clock())
        super().__init__(self.counters, lambda model: BOUNDS)

    async def settle(self, lease: Lease, num_tokens: int) -> None:
        """Release a lease and wait until Redis has the settlement."""
        self.release(lease, num_tokens)
        await self.counters.settled()


type Start = Callable[..., Replica]


@pytest.fixture
async def start(redis_server: RedisServer) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:

        def start(on_failure: OnFailure = OnFailure.CLOSED, url: str = redis_server.url) -> Replica:
            replica = Replica(url, on_failure)
            stack.push_async_callback(replica.close)
            return replica

        yield start


async def test_many_requests_at_once_never_pass_the_limit(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontend.gateway.redis_counters._TIMEOUT_S", DEADLINE_S)  # on a busy machine Redis is late
    replicas, request = [start(), start()], counted(max_concurrent=5)
    outcomes = await asyncio.gather(
        *(replicas[number % 2].acquire(request) for number in range(40)), return_exceptions=True
    )
    assert sum(isinstance(each, Lease) for each in outcomes) == 5
    assert sum(isinstance(each, RateLimited) for each in outcomes) == 35


async def test_the_concurrency_of_a_killed_replica_expires(start: Start, redis_server: RedisServer) -> None:
    killed, other = start(), start()
    request = counted(max_concurrent=1)
    lease = await killed.acquire(request)
    with pytest.raises(RateLimited):
        await other.acquire(request)
    [key] = redis_server.run(lambda client: client.keys("*:concurrency"))
    redis_server.run(lambda client: client.zadd(key, {f"{lease.id}:1": 1.0}))  # the lease has expired
    await other.acquire(request)


async def test_a_lease_is_renewed_while_its_request_runs(start: Start, redis_server: RedisServer) -> None:
    replica = start()
    lease = await replica.acquire(counted(num_completions=2, max_concurrent=2))
    [key] = redis_server.run(lambda client: client.keys("*:concurrency"))

    def expiries() -> list[float | None]:
        return redis_server.run(lambda client: client.zmscore(key, [f"{lease.id}:1", f"{lease.id}:2"]))

    before = expiries()
    await replica.counters.renew()
    assert all(now > then for now, then in zip(expiries(), before, strict=True) if now and then)
    await replica.settle(lease, 0)
    await replica.counters.renew()
    assert (None in before, expiries()) == (False, [None, None])


async def test_a_request_that_is_cancelled_during_the_charge_holds_nothing(start: Start) -> None:
    replica, request = start(), counted(max_concurrent=1)
    await replica.acquire(counted("other", max_concurrent=1))
    acquiring = asyncio.create_task(replica.acquire(request))
    await asyncio.sleep(0)
    acquiring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acquiring
    await replica.counters.settled()
    await replica.acquire(request)


SCOPES = [
    scope(requests_per_minute=6, tokens_per_minute=300),
    scope(model="m", tokens_per_minute=120, max_concurrent=3),
    scope(model="n", requests_per_minute=4, max_concurrent=2),
]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["charge", "charge", "settle", "undo"]),
        st.sets(st.integers(0, 2), min_size=1),
        st.integers(0, 130),
        st.integers(1, 3),
    ),
    max_size=25,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_redis_decides_like_memory(
    redis_server: RedisServer, steps: list[tuple[str, set[int], int, int]]
) -> None:
    redis_server.run(lambda client: client.flushall())
    memory, shared = MemoryCounters(Clock()), RedisCounters(redis_server.url, "Redis", OnFailure.CLOSED)
    running = []
    for number, (kind, chosen, amount, width) in enumerate(steps):
        if kind == "charge":
            counters = counters_of(tuple(SCOPES[index] for index in sorted(chosen)))
            charge = str(number), counters, Amounts(1, amount, width)
            here, there = await memory.charge(*charge), await shared.charge(*charge)
            assert here.refused == there.refused
            assert list(here.used) == pytest.approx(there.used, abs=0.5)  # in the meantime a part was refilled
            if here.refused is None:
                running.append((str(number), counters, amount, width))
        elif running:
            lease_id, counters, estimate, held = running.pop(0)
            amounts = Amounts(0, amount - estimate, -held) if kind == "settle" else Amounts(-1, -estimate, -held)
            for each in (memory, shared):
                each.settle(lease_id, counters, amounts)
            await shared.settled()
    await shared.close()


async def test_a_redis_that_hangs_delays_requests_for_a_second(start: Start, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{tmp_path}/silent")
        silent.listen()
        replica = start(OnFailure.OPEN, f"unix://{tmp_path}/silent")
        async with asyncio.timeout(10):
            assert (await replica.acquire(counted(requests_per_minute=1))).readings == ()
