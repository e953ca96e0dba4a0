"""The commands for one endpoint."""

from __future__ import annotations

import pytest

from frontend.settings import Settings
from frontend.triton.client import TritonClient
from frontend.triton.commands import check_endpoint, drain_endpoint, path_to_try
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


@pytest.mark.parametrize(
    ("pooling", "refusal", "path"),
    [
        ("", None, "/v1/chat/completions"),
        ("", "[invalid_value] messages: this model has no chat template", "/v1/completions"),
        ("mean", None, "/v1/embeddings"),  # its tokenizer may have a chat template
        ("rank", None, "/v1/rerank"),
    ],
)
async def test_the_path_to_try_is_that_of_the_models_work(
    server: FakeTritonServer, client: TritonClient, pooling: str, refusal: str | None, path: str
) -> None:
    parameters = served_model(pooling=pooling).parameters.to_config()
    server.index, server.configs = [("org--demo", "READY")], {"org--demo": ("ensemble", parameters)}
    if refusal is not None:
        server.tokenizer_answer = refusal
    settings = Settings(triton_endpoints=(client.repository._connection.endpoint,))
    assert await path_to_try(settings, "org/demo") == path
