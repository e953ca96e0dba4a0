"""Models on demand at several Tritons, and what the health checks of a Triton say of models that are not loaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from frontend.errors import Draining, StageUnhealthy, TritonUnreachable
from frontend.triton.health_checks import check_health
from frontend.triton.replica_state import State
from model_repository.contract.output import EngineStats
from tests.fakes import DEMO, FakeTriton, PlayedArbiter, chunks
from tests.frontend.gateway.test_shared_limiter import until
from tests.frontend.triton.test_health_monitor import settled
from tests.frontend.triton.test_pool import Pool

ENGINE = "org--demo__engine"


class Demanding(Pool):
    """Two Tritons with a model on demand."""

    def __init__(self) -> None:
        self.tritons = [FakeTriton(chunks("x"), models=[DEMO]) for _ in range(2)]
        self.arbiters = [PlayedArbiter(DEMO) for _ in self.tritons]
        for triton, arbiter in zip(self.tritons, self.arbiters, strict=True):
            triton.arbiter = arbiter
        super().__init__(self.tritons)

    async def answer(self) -> str:
        """Return a whole completion, as a request gets it."""
        hold = self.pool.hold(DEMO.id, "a")
        try:
            await hold.ready()
            return await self.text()
        finally:
            hold.release()

    @property
    def wished(self) -> list[list[str]]:
        """The wishes of each Triton."""
        return [arbiter.wished for arbiter in self.arbiters]


@pytest.fixture
async def pool() -> AsyncIterator[Demanding]:
    pool = Demanding()
    async with pool.pool.running():
        await pool.pool.snapshot()
        yield pool


async def test_a_request_goes_where_its_model_is_loaded(pool: Demanding) -> None:
    pool.arbiters[1].states[DEMO.id] = "loaded"
    await until(lambda: pool.replicas[1].leases.may_begin(DEMO.id))
    assert await pool.answer() == "x"
    assert ([triton.asked for triton in pool.tritons], pool.wished) == ([[], [DEMO.ensemble]], [[], []])


async def test_no_request_begins_where_its_model_is_to_leave(pool: Demanding) -> None:
    for arbiter in pool.arbiters:
        arbiter.states[DEMO.id] = "loaded"
    await until(lambda: all(each.leases.may_begin(DEMO.id) for each in pool.replicas))
    with pool.replicas[0].serving(DEMO.ensemble), pool.replicas[1].serving(DEMO.ensemble):
        pool.arbiters[1].recalled = {DEMO.id}
        await until(lambda: not pool.replicas[1].leases.may_begin(DEMO.id))
        with pool.replicas[0].serving(DEMO.ensemble):  # which has more requests
            assert await pool.answer() == "x"
    assert [triton.asked for triton in pool.tritons] == [[DEMO.ensemble], []]


async def test_one_triton_loads_a_model_for_all_requests_that_wait(pool: Demanding) -> None:
    """The second one wished at the Triton with fewer requests."""
    for arbiter in pool.arbiters:
        arbiter.is_holding = True
    first = asyncio.create_task(pool.answer())
    await until(lambda: any(pool.wished))
    with pool.replicas[0].serving("org--busy"):
        second = asyncio.create_task(pool.answer())
        pool.arbiters[0].is_holding = False
        assert [*await asyncio.gather(first, second)] == ["x", "x"]
    assert pool.wished == [[DEMO.id], []]


async def test_a_request_waits_where_another_frontend_has_its_model_loaded(pool: Demanding) -> None:
    pool.arbiters[1].states[DEMO.id] = "loading"
    await until(lambda: pool.pool.status_of(DEMO.id).state == "loading")  # type: ignore[union-attr]
    assert await pool.answer() == "x"
    assert pool.wished == [[], [DEMO.id]]


async def test_requests_that_wait_at_a_triton_that_dies_go_to_another(pool: Demanding) -> None:
    """They waited for it, up to five minutes."""
    for arbiter in pool.arbiters:
        arbiter.is_holding = True
    asking = [asyncio.create_task(pool.answer()) for _ in range(2)]
    await until(lambda: any(pool.wished))
    dead = pool.wished.index([DEMO.id])
    pool.arbiters[1 - dead].is_holding = False
    pool.tritons[dead].arbiter_error = pool.tritons[dead].snapshot_error = TritonUnreachable()
    assert await asyncio.gather(*asking) == ["x", "x"]
    assert pool.wished[1 - dead] == [DEMO.id]
    assert not pool.replicas[dead].leases._num_used


async def test_a_request_outlives_the_only_triton(pool: Demanding) -> None:
    pool.pool.replicas = pool.pool.replicas[:1]
    pool.arbiters[0].is_holding = True
    asking = asyncio.create_task(pool.answer())
    await until(lambda: any(pool.wished))
    pool.tritons[0].arbiter_error = pool.tritons[0].snapshot_error = TritonUnreachable()
    await until(lambda: not pool.replicas[0].leases._waiting)
    pool.arbiters[0].is_holding = False
    pool.tritons[0].arbiter_error = pool.tritons[0].snapshot_error = None
    await pool.replicas[0].models.refreshing()
    assert await asking == "x"


async def test_the_end_of_a_drain_ends_requests_that_wait(pool: Demanding) -> None:
    """Each held the server back for two seconds, and was cut off without an answer."""
    pool.arbiters[0].is_holding = True
    asking = asyncio.create_task(pool.answer())
    await until(lambda: any(pool.wished))
    pool.pool.end_all(Draining())
    for each in (asking, pool.answer()):
        with pytest.raises(Draining):
            await each


async def test_monitors_of_a_model_that_is_not_held_ask_its_stages_nothing(pool: Demanding) -> None:
    replica = pool.replicas[0]
    pool.tritons[0].arbiter = PlayedArbiter()  # its list still has the model
    await until(lambda: not replica.leases.can_load(DEMO.id))
    await replica.models.refreshing()
    assert replica.models.latest.replicas_of(DEMO.id)
    pool.tritons[0].stats_error = StageUnhealthy(ENGINE)
    await settled(replica.monitor)
    assert DEMO.ensemble not in replica.monitor.states
    replica.monitor.request_failed(DEMO.ensemble, StageUnhealthy(ENGINE), 0.0)
    pool.tritons[0].calls.clear()
    await settled(replica.monitor)
    assert pool.tritons[0].calls == []


async def test_a_check_that_ends_after_the_lease_of_its_model_says_nothing(pool: Demanding) -> None:
    """The engine of an unloaded model was down in the metrics, until it was loaded again."""
    await pool.answer()
    replica, seen = pool.replicas[0], list[str]()

    async def check(ensemble: str) -> EngineStats:
        replica.leases._leases.clear()
        raise StageUnhealthy(ENGINE)

    replica.monitor._check_engine = check  # type: ignore[method-assign]
    replica.monitor._on_checked = lambda ensemble, result: seen.append(ensemble)
    await replica.monitor.poll(DEMO.ensemble)
    assert (seen, pool.tritons[0].calls) == ([], [])


async def test_the_state_of_a_replica_ends_with_its_lease(pool: Demanding) -> None:
    await pool.answer()
    replica = pool.replicas[0]
    replica.monitor.request_failed(DEMO.ensemble, StageUnhealthy(ENGINE), 0.0)
    assert replica.monitor.states[DEMO.ensemble].state is State.RECOVERING
    pool.arbiters[0].recalled = {DEMO.id}
    await until(lambda: not pool.arbiters[0].recalled)
    assert DEMO.ensemble not in replica.monitor.states


@pytest.mark.parametrize("state", ["unloaded", "loading", "unloading"])
@pytest.mark.parametrize("is_generating", [False, True])
async def test_a_triton_without_a_loaded_model_is_well(state: str, is_generating: bool) -> None:
    """While the last one was unloaded it was not."""
    triton = FakeTriton(models=[DEMO])
    arbiter = triton.arbiter = PlayedArbiter(DEMO, org_demo=state)
    for model in ("", DEMO.id):
        result = await check_health(triton, model=model, deadline_s=9, stall_s=9, is_generating=is_generating)
        assert result[:2] == (True, "org/demo: loaded by a request")
    result = await check_health(triton, model="org/none", deadline_s=9, stall_s=9, is_generating=is_generating)
    assert result[:2] == (False, "org/none: not served")
    assert (arbiter.wished, triton.requests) == ([], [])
