"""The commands for one endpoint."""

from __future__ import annotations

from frontend.settings import Settings
from frontend.triton.client import TritonClient
from frontend.triton.commands import drain_endpoint
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
