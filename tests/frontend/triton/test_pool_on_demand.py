"""Models on demand at several Tritons, and what the health checks of a Triton say of models that are not loaded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing

import pytest

from frontend.errors import Draining, ModelNotReady, StageUnhealthy
from frontend.settings import Settings
from frontend.triton.endpoints import ANY_MODEL
from frontend.triton.health_checks import check_health
from frontend.triton.pool import ReplicaPool
from frontend.triton.replica import Replica
from frontend.triton.replica_state import State
from model_repository.contract.request import TextPrompt
from tests.fakes import DEMO, FakeTriton, PlayedArbiter, chunks
from tests.frontend.gateway.test_shared_limiter import until
from tests.frontend.triton.generating import said
from tests.frontend.triton.test_health_monitor import settled
from tests.frontend.triton.test_pool import REQUEST

ENGINE = "org--demo__engine"


class Pool:
    """Two Tritons with a model on demand."""

    def __init__(self) -> None:
        self.tritons = [FakeTriton(chunks("x"), models=[DEMO]) for _ in range(2)]
        self.arbiters = [PlayedArbiter(DEMO) for _ in self.tritons]
        for triton, arbiter in zip(self.tritons, self.arbiters, strict=True):
            triton.arbiter = arbiter
        self.replicas = [Replica(f"fake:{index}", triton, Settings()) for index, triton in enumerate(self.tritons)]
        self.pool = ReplicaPool(self.replicas)

    async def text(self) -> str:
        """Return a whole completion, as a request gets it."""
        hold = self.pool.hold(DEMO.id, "a")
        try:
            await hold.ready(300.0)
            async with aclosing(self.pool.generate(DEMO.id, REQUEST)) as stream:
                return "".join([said(chunk) async for _, chunk in stream])
        finally:
            hold.release()

    @property
    def wished(self) -> list[list[str]]:
        """The wishes of each Triton."""
        return [arbiter.wished for arbiter in self.arbiters]


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    async with AsyncExitStack() as stack:
        pool = Pool()
        await stack.enter_async_context(pool.pool.running())
        await pool.pool.snapshot()
        yield pool


async def test_a_request_goes_where_its_model_is_loaded(pool: Pool) -> None:
    pool.arbiters[1].states[DEMO.id] = "loaded"
    await until(lambda: pool.replicas[1].leases.may_begin(DEMO.id))
    assert await pool.text() == "x"
    assert ([triton.asked for triton in pool.tritons], pool.wished) == ([[], [DEMO.ensemble]], [[], []])


async def test_one_triton_loads_a_model_for_all_requests_that_wait(pool: Pool) -> None:
    """The second one wished at the Triton with fewer requests."""
    for arbiter in pool.arbiters:
        arbiter.is_holding = True
    first = asyncio.create_task(pool.text())
    await until(lambda: any(pool.wished))
    with pool.replicas[0].serving("org--busy"):
        second = asyncio.create_task(pool.text())
        pool.arbiters[0].is_holding = False
        assert [*await asyncio.gather(first, second)] == ["x", "x"]
    assert pool.wished == [[DEMO.id], []]


async def test_a_request_waits_where_another_frontend_has_its_model_loaded(pool: Pool) -> None:
    pool.arbiters[1].states[DEMO.id] = "loading"
    await until(lambda: pool.pool.status_of(DEMO.id).state == "loading")  # type: ignore[union-attr]
    assert await pool.text() == "x"
    assert pool.wished == [[], [DEMO.id]]


async def test_the_end_of_a_drain_ends_requests_that_wait(pool: Pool) -> None:
    """Each held the server back for two seconds, and was cut off without an answer."""
    pool.arbiters[0].is_holding = True
    asking = asyncio.create_task(pool.text())
    await until(lambda: any(pool.wished))
    pool.pool.end_all(Draining())
    for each in (asking, pool.text()):
        with pytest.raises(Draining):
            await each


async def test_requests_that_wait_at_a_removed_endpoint_end(pool: Pool) -> None:
    """They waited until their bound."""
    for replica in pool.replicas:
        replica.model_filter.add([ANY_MODEL])
    pool.arbiters[0].is_holding = True
    asking = asyncio.create_task(pool.text())
    await until(lambda: any(pool.wished))
    for _ in range(2):
        pool.pool.remove("fake:0", [ANY_MODEL])
    with pytest.raises(ModelNotReady):
        await asking


async def test_the_wish_of_a_tokenization_has_its_sender(pool: Pool) -> None:
    pool.arbiters[0].is_holding = True
    prompt = TextPrompt("a")
    asking = [
        asyncio.create_task(pool.pool.tokenize(DEMO.id, prompt, add_special_tokens=True, sender="someone")),
        asyncio.create_task(pool.pool.detokenize(DEMO.id, [1], has_special_tokens=True, sender="someone")),
    ]
    await until(lambda: any(pool.wished))
    assert pool.arbiters[0].wishes[DEMO.id].sender == "someone"
    pool.arbiters[0].is_holding = False
    await asyncio.gather(*asking)


async def test_monitors_of_a_model_that_is_not_held_ask_its_stages_nothing(pool: Pool) -> None:
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


async def test_the_state_of_a_replica_ends_with_its_lease(pool: Pool) -> None:
    await pool.text()
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
