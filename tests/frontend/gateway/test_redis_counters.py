"""Counts in a real Redis, shared by replicas."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis._parsers import BaseParser

from frontend.errors import RateLimited
from frontend.gateway.admission import Bounds
from frontend.gateway.counters import Amounts, MemoryCounters, counters_of
from frontend.gateway.limiter import LocalLimiter
from frontend.gateway.outage import LimitsUnavailable, OnFailure
from frontend.gateway.redis_counters import RedisCounters, _is_about_keys
from frontend.gateway.types import Lease
from frontend.settings import SettingsError
from tests.frontend.gateway.admission_requests import Clock, counted, scope
from tests.frontend.gateway.conftest import RedisName, RedisServer
from tests.launching import free_port
from tests.waiting import DEADLINE_S

BOUNDS = Bounds(max_in_flight=0, max_in_flight_prompt_tokens=0, max_queue_wait_s=1.0)


class Replica(LocalLimiter):
    """A limiter with its counts in Redis."""

    def __init__(self, url: str, on_failure: OnFailure = OnFailure.CLOSED) -> None:
        self.clock = Clock()
        self.counters = RedisCounters(url, "Redis", on_failure, self.clock)
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


@pytest.mark.parametrize("expires_s", [1.0, 1e10])  # in the past; written before the clock of Redis went back
async def test_the_concurrency_of_a_killed_replica_expires(
    start: Start, redis_server: RedisServer, expires_s: float
) -> None:
    killed, other = start(), start()
    request = counted(max_concurrent=1)
    lease = await killed.acquire(request)
    with pytest.raises(RateLimited):
        await other.acquire(request)
    [key] = redis_server.run(lambda client: client.keys("*:concurrency"))
    redis_server.run(lambda client: client.zadd(key, {f"{lease.id}:1": expires_s}))
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


@pytest.fixture
async def name(redis_server: RedisServer) -> AsyncIterator[RedisName]:
    """Return a name that leads to the Redis."""
    name = RedisName(redis_server)
    async with name.served():
        yield name


async def use_all_connections(replica: Replica) -> None:
    """Have each connection open."""
    leases = await asyncio.gather(*(replica.acquire(counted(f"k{i}", max_concurrent=1)) for i in range(8)))
    await asyncio.gather(*(replica.settle(lease, 0) for lease in leases))


@pytest.fixture
def pair(redis_server: RedisServer, tmp_path: Path) -> Iterator[list[RedisServer]]:
    """Run two empty ones."""
    servers = [RedisServer(tmp_path / each, free_port()) for each in ("old", "new")]
    for server in servers:
        server.path.parent.mkdir()
        server.start()
    yield servers
    for server in servers:
        server.stop()


async def test_counts_go_on_with_the_new_primary_after_a_failover(
    start: Start, name: RedisName, pair: list[RedisServer]
) -> None:
    # A primary that became a replica answers READONLY on the connections that it has.
    old, new = pair
    name.target = old
    new.run(lambda client: client.replicaof("127.0.0.1", old.port))
    new.wait_for_copy()
    replica, request = start(OnFailure.CLOSED, name.url), counted(requests_per_minute=9)
    await asyncio.gather(*(replica.acquire(request) for _ in range(8)))
    old.run(lambda client: client.wait(1, 10_000))
    new.run(lambda client: client.replicaof("no", "one"))
    old.run(lambda client: client.replicaof("127.0.0.1", new.port))
    name.target = new
    await replica.acquire(request)
    with pytest.raises(RateLimited):
        await replica.acquire(request)


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("is_seen", [False, True])
async def test_no_request_fails_by_connections_that_were_closed_meanwhile(
    start: Start, name: RedisName, is_reset: bool, is_seen: bool
) -> None:
    # A connection that was reset raises neither an OSError nor an error of Redis, but asyncio's or uvloop's own.
    replica = start(OnFailure.CLOSED, name.url)
    await use_all_connections(replica)
    name.cut(is_reset=is_reset)
    for _ in range(10 * is_seen):
        await asyncio.sleep(0)
    await use_all_connections(replica)


async def test_connections_that_carry_nothing_any_more_are_one_outage(start: Start, name: RedisName) -> None:
    replica = start(OnFailure.CLOSED, name.url)
    await use_all_connections(replica)
    name.num_lost = name.num_connections
    with pytest.raises(LimitsUnavailable):
        await replica.acquire(counted(requests_per_minute=1))
    replica.clock.now_s += 1
    await use_all_connections(replica)


async def test_a_proxy_that_knows_no_SCRIPT_counts(start: Start, name: RedisName) -> None:
    name.unknown_commands = (b"SCRIPT", b"HELLO", b"CLIENT")
    replica = start(OnFailure.CLOSED, name.url)
    await replica.acquire(counted(requests_per_minute=1))
    with pytest.raises(RateLimited):
        await replica.acquire(counted(requests_per_minute=1))


@pytest.mark.parametrize(
    ("kind", "value"),
    [("requests", "text"), ("requests", b"\xff"), ("requests", "inf"), ("requests", ["a"]), ("concurrency", "7")],
)
async def test_a_value_that_is_no_counter_is_replaced_and_named(
    start: Start, redis_server: RedisServer, caplog: pytest.LogCaptureFixture, kind: str, value: str | bytes | list[str]
) -> None:
    replica, request = start(), counted(requests_per_minute=1, max_concurrent=1)
    await replica.acquire(counted("other", requests_per_minute=2))
    redis_key = f"conch:{{k}}::{kind}"
    redis_server.run(
        lambda client: client.rpush(redis_key, *value) if isinstance(value, list) else client.set(redis_key, value)
    )
    await replica.acquire(request)
    assert redis_key in caplog.text
    with pytest.raises(RateLimited):
        await replica.acquire(request)
    await replica.acquire(counted("other", requests_per_minute=2))


@pytest.mark.parametrize("back_s", [30, 3600])
async def test_a_clock_of_redis_that_goes_back_refuses_for_a_minute_at_most(
    start: Start, redis_server: RedisServer, back_s: int
) -> None:
    replica, request = start(), counted(requests_per_minute=2)
    for _ in range(2):
        await replica.acquire(request)

    def put_forward(client: Any) -> None:
        """Write the time as a clock that is ahead does."""
        [rate] = client.keys("*:requests")
        client.set(rate, float(client.get(rate)) + back_s, px=client.pttl(rate) + 1000 * back_s)

    redis_server.run(put_forward)
    with pytest.raises(RateLimited) as caught:
        await replica.acquire(request)
    assert float(caught.value.headers["Retry-After"]) <= 60


UNABLE = {
    "READONLY": (["replicaof", "127.0.0.1", "1"], ["replicaof", "no", "one"]),
    "MASTERDOWN": (["replicaof", "127.0.0.1", "1"], ["replicaof", "no", "one"]),
    "OOM": (["config", "set", "maxmemory", "1"], ["config", "set", "maxmemory", "0"]),
    "NOREPLICAS": (["config", "set", "min-replicas-to-write", "1"], ["config", "set", "min-replicas-to-write", "0"]),
    "NOPERM": (["acl", "setuser", "default", "-eval"], ["acl", "setuser", "default", "+eval"]),
}


@pytest.mark.parametrize("state", UNABLE)
async def test_a_redis_that_cannot_count_is_one_outage(
    start: Start, redis_server: RedisServer, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    break_it, mend_it = UNABLE[state]
    serve_stale_data = "no" if state == "MASTERDOWN" else "yes"
    redis_server.run(lambda client: client.config_set("replica-serve-stale-data", serve_stale_data))
    replica = start()
    try:
        redis_server.run(lambda client: client.execute_command(*break_it))
        for key in "ab":
            with pytest.raises(LimitsUnavailable):
                await replica.acquire(counted(key, requests_per_minute=1))
            replica.clock.now_s += 1
    finally:
        redis_server.run(lambda client: client.execute_command(*mend_it))
    await replica.acquire(counted(requests_per_minute=1))
    [begin, end] = caplog.messages
    assert "requests are refused: " in begin and "counts again" in end


@pytest.mark.parametrize(
    ("answer", "is_about_keys"),
    [
        ("MOVED 866 10.0.0.1:6379", True),
        ("TRYAGAIN Multiple keys request during rehashing of slot", True),
        ("CLUSTERDOWN Hash slot not served", True),
        ("CLUSTERDOWN The cluster is down", False),
        ("LOADING Redis is loading the dataset in memory", False),
        ("BUSY Redis is busy running a script", False),
        ("ERR Error running script (call to f_1): @user_script:6: -READONLY You can't write against it.", False),
    ],
)
def test_some_answers_concern_the_keys_alone(answer: str, is_about_keys: bool) -> None:
    assert _is_about_keys(BaseParser.parse_error(answer)) == is_about_keys


RIGHTS = "+eval +time +get +set +pttl +del +expire +zadd +zrem +zcard +zremrangebyscore"


async def test_a_key_that_the_rights_in_redis_leave_out_is_refused_alone(
    start: Start, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    page = (Path(__file__).parents[3] / "docs/limits.md").read_text()
    assert f"~conch:* {RIGHTS}" in page.replace("\n", " ")
    rights = [*RIGHTS.split(), "~conch:{good}*"]
    redis_server.run(lambda client: client.execute_command("acl", "setuser", "conch", "on", ">password", *rights))
    replica = start(url=f"{redis_server.url}?username=conch&password=password")
    limits = {"requests_per_minute": 3, "max_concurrent": 3}
    for _ in range(2):
        for value in ("text", 1e10):  # with each command of the script
            redis_server.run(lambda client: client.set("conch:{good}::requests", value))  # noqa: B023
            await replica.settle(await replica.acquire(counted("good", **limits)), 0)
        await replica.acquire(counted("good", **limits))
        await replica.counters.renew()
        with pytest.raises(LimitsUnavailable):
            await replica.acquire(counted("bad", **limits))
    refusals = [message for message in caplog.messages if "{bad}" in message]
    assert len(refusals) == 1 and "NoPermissionError" in refusals[0]
    redis_server.run(lambda client: client.acl_setuser("conch", enabled=True, keys=["conch:*"]))
    await replica.acquire(counted("bad", **limits))
    assert "{bad}" in caplog.messages[-1] and "again" in caplog.messages[-1]


@pytest.mark.parametrize("options", ["?db=x", "?max_connections=9", "?ssl_ca_certs=missing"])
def test_an_option_in_the_url_that_cannot_be_used_is_refused(options: str) -> None:
    with pytest.raises(SettingsError, match="--redis-url: "):
        RedisCounters(f"rediss://localhost{options}", "Redis", OnFailure.OPEN)
