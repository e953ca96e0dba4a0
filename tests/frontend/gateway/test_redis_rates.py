"""Rates in a Redis that replicas share: a real one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frontend.errors import RateLimited
from frontend.gateway.outage import LimitsUnavailable, OnFailure, Outage
from frontend.gateway.rates import MemoryRates, Rates
from frontend.gateway.redis_rates import RedisRates
from frontend.gateway.types import AdmissionRequest, Reading
from tests.frontend.gateway.admission_requests import Clock, counted, scope
from tests.frontend.gateway.conftest import SERVER, RedisServer

type Replica = Callable[..., RedisRates]


@pytest.fixture
async def replica(redis_server: RedisServer) -> AsyncIterator[Replica]:
    async with AsyncExitStack() as stack:

        def make(on_failure: OnFailure = OnFailure.CLOSED, url: str = redis_server.url, **fields: Any) -> RedisRates:
            rates = RedisRates(url, Outage("Redis", on_failure, **fields))
            stack.push_async_callback(rates.close)
            return rates

        yield make


async def test_replicas_share_one_limit(replica: Replica) -> None:
    here, there = replica(), replica()
    request = counted(num_tokens=40, requests_per_minute=2, tokens_per_minute=100)
    await here.take("1", request)
    readings = await there.take("2", request)
    assert [each.remaining for each in readings] == [0, 20]
    with pytest.raises(RateLimited) as caught:
        await here.take("3", request)
    assert caught.value.code == "requests"
    assert 29_000 < int(caught.value.headers["retry-after-ms"]) <= 30_000


async def test_tokens_are_settled_and_requests_that_were_not_served_undone(replica: Replica) -> None:
    rates = replica()
    request = counted(num_tokens=80, tokens_per_minute=100, requests_per_minute=10)
    await rates.take("1", request)
    rates.settle("1", request, 30)
    await asyncio.gather(*rates._tasks)
    [requests, tokens] = await rates.take("2", counted(num_tokens=0, tokens_per_minute=100, requests_per_minute=10))
    assert (requests.remaining, tokens.remaining) == (8, 70)
    rates.undo("2", counted(num_tokens=0, tokens_per_minute=100, requests_per_minute=10))
    await asyncio.gather(*rates._tasks)
    [requests, tokens] = await rates.take("3", counted(num_tokens=0, tokens_per_minute=100, requests_per_minute=10))
    assert (requests.remaining, tokens.remaining) == (8, 70)


async def test_many_at_once_never_pass_the_limit(replica: Replica) -> None:
    replicas, request = [replica(), replica()], counted(max_concurrent=5)
    takes = [replicas[number % 2].take(str(number), request) for number in range(40)]
    outcomes = await asyncio.gather(*takes, return_exceptions=True)
    assert sum(isinstance(each, tuple) for each in outcomes) == 5
    assert sum(isinstance(each, RateLimited) for each in outcomes) == 35


async def test_the_places_of_a_replica_that_was_killed_expire(replica: Replica, redis_server: RedisServer) -> None:
    killed, other = replica(), replica()
    request = counted(max_concurrent=1)
    await killed.take("1", request)
    with pytest.raises(RateLimited):
        await other.take("2", request)
    [key] = redis_server.run(lambda client: client.keys("*:leases"))
    redis_server.run(lambda client: client.zadd(key, {"1": 1.0}))  # as if its time had come
    await other.take("3", request)


async def test_a_lease_is_renewed_while_its_request_runs(replica: Replica, redis_server: RedisServer) -> None:
    rates, request = replica(), counted(max_concurrent=1)
    await rates.take("1", request)
    [key] = redis_server.run(lambda client: client.keys("*:leases"))
    before = redis_server.run(lambda client: client.zscore(key, "1"))
    await rates._renew_all()
    assert redis_server.run(lambda client: client.zscore(key, "1")) > before
    rates.settle("1", request, 0)
    await asyncio.gather(*rates._tasks)
    await rates._renew_all()
    assert redis_server.run(lambda client: client.zscore(key, "1")) is None


async def test_who_hangs_up_while_redis_is_asked_holds_nothing(replica: Replica) -> None:
    rates, request = replica(), counted(max_concurrent=1)
    await rates.take("0", counted("other", max_concurrent=1))
    taking = asyncio.create_task(rates.take("1", request))
    await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    await asyncio.gather(*rates._tasks)
    assert "1" not in rates._held


SCOPES = [
    scope(requests_per_minute=6, tokens_per_minute=300),
    scope(model="m", tokens_per_minute=120, max_concurrent=3),
    scope(model="n", requests_per_minute=4, max_concurrent=2),
]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "settle", "undo"]), st.sets(st.integers(0, 2), min_size=1), st.integers(0, 130)
    ),
    max_size=25,
)


def near(readings: tuple[Reading, ...]) -> list[tuple[str, object, int]]:
    return [(each.resource, each.limit, each.remaining) for each in readings]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_redis_decides_as_memory_does(redis_server: RedisServer, steps: list[tuple[str, set[int], int]]) -> None:
    redis_server.run(lambda client: client.flushall())
    shared = RedisRates(redis_server.url, Outage("Redis", OnFailure.CLOSED))
    both: tuple[Rates, ...] = (MemoryRates(Clock()), shared)
    running: list[tuple[str, AdmissionRequest]] = []
    for number, (kind, chosen, amount) in enumerate(steps):
        if kind == "take":
            request = AdmissionRequest(
                key="k", scopes=tuple(SCOPES[index] for index in sorted(chosen)), num_tokens=amount
            )
            outcomes: list[list[tuple[str, object, int]]] = []
            for rates in both:
                try:
                    outcomes.append(near(await rates.take(str(number), request)))
                except RateLimited as exc:
                    outcomes.append([("refused", str(exc).partition(";")[0], 0)])
            assert outcomes[0] == outcomes[1]
            if outcomes[0] and outcomes[0][0][0] != "refused":
                running.append((str(number), request))
        elif running:
            lease_id, request = running.pop(0)
            for rates in both:
                if kind == "settle":
                    rates.settle(lease_id, request, amount)
                else:
                    rates.undo(lease_id, request)
            await asyncio.gather(*shared._tasks)
    await shared.close()


@pytest.mark.parametrize("on_failure", OnFailure)
async def test_without_redis_the_choice_holds_and_nobody_waits(
    replica: Replica, tmp_path: Path, on_failure: OnFailure, caplog: pytest.LogCaptureFixture
) -> None:
    rates = replica(on_failure, f"unix://{tmp_path}/nobody")
    for number in range(3):
        request = counted(requests_per_minute=1)
        if on_failure is OnFailure.OPEN:
            assert await rates.take(str(number), request) == ()
            rates.settle(str(number), request, 5)
        else:
            with pytest.raises(LimitsUnavailable):
                await rates.take(str(number), request)
    assert caplog.text.count("Redis does not answer") == 1


async def test_a_redis_that_hangs_is_not_waited_for(replica: Replica, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"{tmp_path}/silent")
        silent.listen()
        rates = replica(OnFailure.OPEN, f"unix://{tmp_path}/silent")
        async with asyncio.timeout(10):
            assert await rates.take("1", counted(requests_per_minute=1)) == ()


async def test_a_redis_that_is_started_again_counts_again(tmp_path: Path) -> None:
    server, clock = RedisServer(tmp_path), Clock()
    if SERVER is None:
        pytest.skip("needs the Debian package redis-server")
    server.start()
    rates, request = RedisRates(server.url, Outage("Redis", OnFailure.OPEN, clock)), counted(requests_per_minute=1)
    try:
        assert await rates.take("1", request)
        server.stop()
        assert await rates.take("2", request) == ()
        server.start()
        clock.now_s += 10
        assert await rates.take("3", request)
        with pytest.raises(RateLimited):
            await rates.take("4", request)
    finally:
        await rates.close()
        server.stop()
