"""Clients of Triton, and the fake servers that they are connected to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from frontend.triton.client import TritonClient
from tests.frontend.triton.server import FakeTritonServer, listen

type Connect = Callable[..., Awaitable[TritonClient]]


@pytest.fixture
async def server() -> FakeTritonServer:
    return FakeTritonServer()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Have a fake server listen, and return a client with these options. Both end with the test."""
    async with AsyncExitStack() as stack:

        async def start(server: FakeTritonServer, *options: Any, credentials: Any = None, **named: Any) -> TritonClient:
            listener, port = await listen(server, credentials=credentials)
            stack.push_async_callback(listener.stop, None)
            client = TritonClient(f"127.0.0.1:{port}", *options, **named)
            stack.push_async_callback(client.close)
            return client

        yield start


@pytest.fixture
async def client(server: FakeTritonServer, connect: Connect) -> TritonClient:
    return await connect(server)
