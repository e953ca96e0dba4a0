"""Replicas that come and go with the addresses of a name."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Collection
from contextlib import aclosing

import pytest

from frontend.errors import TritonUnreachable
from frontend.settings import Settings
from frontend.triton.discovery import DnsDiscovery, addresses_of, discovering
from frontend.triton.endpoints import ANY_MODEL, ModelFilter
from frontend.triton.generating import Generating
from frontend.triton.pool import ReplicaPool
from frontend.triton.replica import Replica
from tests.fakes import DEMO, FakeTriton, chunks
from tests.frontend.triton.generating import said
from tests.frontend.triton.test_pool import REQUEST


class Name:
    """A name whose addresses the test decides, and the pool that follows it."""

    def __init__(self, *models: str) -> None:
        self.addresses: Collection[str] = ()
        self.error: OSError | None = None
        self.tritons: dict[str, FakeTriton] = {}
        self.retired: asyncio.Queue[str] = asyncio.Queue()
        self.pool = ReplicaPool([], self.retired.put_nowait)
        self.discovery = DnsDiscovery("dns:pods:8001", models, self.pool, self.connect, self._resolve)

    async def stands_for(self, *addresses: str) -> list[str]:
        """Change the addresses, have the discovery look, and return the pool's endpoints."""
        self.addresses, self.error = addresses, None
        await self.discovery.look()
        return [replica.endpoint for replica in self.pool.replicas]

    def connect(self, endpoint: str, model_filter: ModelFilter) -> Replica:
        """Make the replica of an endpoint."""
        self.tritons[endpoint] = FakeTriton(chunks("x"), models=[DEMO])
        return Replica(endpoint, self.tritons[endpoint], Settings(), model_filter=model_filter)

    async def _resolve(self, host: str, port: int) -> Collection[str]:
        if self.error is not None:
            raise self.error
        return [f"{address}:{port}" for address in self.addresses]


async def test_each_address_is_a_replica_as_long_as_the_name_stands_for_it():
    name = Name(ANY_MODEL)
    assert await name.stands_for("10.0.0.2", "10.0.0.1") == ["10.0.0.1:8001", "10.0.0.2:8001"]
    first = name.tritons["10.0.0.1:8001"]
    assert await name.stands_for("10.0.0.1", "10.0.0.3") == ["10.0.0.1:8001", "10.0.0.3:8001"]
    assert name.tritons["10.0.0.1:8001"] is first, "a replica that stays keeps its connection"
    assert await name.retired.get() == "10.0.0.2:8001"


async def test_a_name_that_cannot_be_looked_up_changes_nothing_and_is_said_once(caplog):
    name = Name(ANY_MODEL)
    await name.stands_for("10.0.0.1")
    name.error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    caplog.clear()
    await name.discovery.look()
    await name.discovery.look()
    assert [replica.endpoint for replica in name.pool.replicas] == ["10.0.0.1:8001"]
    assert [record.getMessage() for record in caplog.records] == ["pods cannot be looked up: Name or service not known"]


async def test_a_replica_that_goes_finishes_its_requests_and_gets_no_more():
    name = Name(ANY_MODEL)
    await name.stands_for("10.0.0.1")
    async with name.pool.running():
        await name.pool.snapshot()
        async with aclosing(Generating(name.pool, DEMO.id, REQUEST)) as stream:
            await anext(stream)
            await name.stands_for("10.0.0.2")
            await name.pool.snapshot()
            assert name.retired.empty()
            async with aclosing(Generating(name.pool, DEMO.id, REQUEST)) as other:
                assert [said(chunk) async for _, chunk in other]
        assert await name.retired.get() == "10.0.0.1:8001"
    assert len(name.tritons["10.0.0.1:8001"].requests) == len(name.tritons["10.0.0.2:8001"].requests) == 1


async def test_before_the_first_lookup_there_is_no_endpoint():
    with pytest.raises(TritonUnreachable):
        await Name(ANY_MODEL).pool.snapshot()


async def test_an_endpoint_that_is_named_by_itself_too_is_one_replica():
    name = Name(DEMO.id)
    name.pool.add("10.0.0.1:8001", ["other"], name.connect)
    assert await name.stands_for("10.0.0.1") == ["10.0.0.1:8001"]
    [replica] = name.pool.replicas
    assert (DEMO.id in replica.model_filter, "other" in replica.model_filter) == (True, True)
    assert await name.stands_for() == ["10.0.0.1:8001"]
    assert (DEMO.id in replica.model_filter, "other" in replica.model_filter) == (False, True)


async def test_a_named_models_silent_endpoints_are_dropped_when_the_name_has_no_addresses():
    name = Name(DEMO.id)
    await name.stands_for("10.0.0.1", "10.0.0.2")
    await name.pool.snapshot()
    name.tritons["10.0.0.1:8001"].snapshot_error = TritonUnreachable()
    await name.pool.snapshot()
    name.error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    await name.discovery.look()
    assert len(name.pool.replicas) == 2, "nobody has said that it stands for nothing"
    name.error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    await name.discovery.look()
    assert [replica.endpoint for replica in name.pool.replicas] == ["10.0.0.2:8001"]


async def test_the_first_look_is_over_when_the_block_begins():
    name = Name(ANY_MODEL)
    name.addresses = ["10.0.0.1"]
    async with discovering([name.discovery]):
        assert [replica.endpoint for replica in name.pool.replicas] == ["10.0.0.1:8001"]


async def test_a_name_of_this_machine_stands_for_its_addresses():
    assert "127.0.0.1:8001" in await addresses_of("localhost", 8001)
    with pytest.raises(OSError, match=r".+"):
        await addresses_of("no-such-name.invalid", 8001)
