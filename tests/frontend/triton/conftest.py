"""A client of Triton and the fake server that it is connected to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from frontend.triton.client import TritonClient
from tests.frontend.triton.server import FakeTritonServer, listen


@pytest.fixture
async def server() -> FakeTritonServer:
    return FakeTritonServer()


@pytest.fixture
async def client(server: FakeTritonServer) -> AsyncIterator[TritonClient]:
    listener, port = await listen(server)
    client = TritonClient(f"127.0.0.1:{port}")
    yield client
    await client.close()
    await listener.stop(None)
