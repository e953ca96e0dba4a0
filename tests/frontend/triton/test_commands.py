"""The commands for one endpoint."""

from __future__ import annotations

from frontend.settings import Settings
from frontend.triton.client import TritonClient
from frontend.triton.commands import check_endpoint, drain_endpoint
from tests.fakes import served_model
from tests.frontend.triton.server import FakeTritonServer


async def test_a_drain_reaches_each_replica(server: FakeTritonServer, client: TritonClient) -> None:
    replicas = {"org--demo": served_model(), "org--demo@2": served_model(replica=2)}
    server.index = [(name, "READY") for name in replicas]
    server.configs = {name: ("ensemble", model.parameters.to_config()) for name, model in replicas.items()}
    endpoint = client.repository._connection.endpoint
    assert (await drain_endpoint(Settings(triton_endpoints=(endpoint,)), notice_s=0, timeout_s=10))[0]
    drained = [server.controls.get_nowait() for _ in replicas]
    assert drained == [(f"{name}__engine", {"drain": True}) for name in replicas]


async def test_a_triton_that_refuses_our_key_is_another_servers(server: FakeTritonServer, client: TritonClient) -> None:
    server.key = "right" * 10
    settings = Settings(triton_endpoints=(client.repository._connection.endpoint,), triton_key="wrong" * 10)
    result = await check_endpoint(settings, model="", is_generating=True, needs_key=True)
    assert (result.names, result.reason.partition(":")[0]) == (None, "triton_key_refused")
