"""Shared by the frontend's tests: the real application on loopback over a fake Triton."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from frontend.server import ConnectionRunner, app_runner
from frontend.settings import Settings
from frontend.triton.client import TritonClient

type Serve = Callable[..., Awaitable[aiohttp.ClientSession]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Serve a Triton over HTTP with the given settings, and return a client of it; None: those of the settings.

    The application is appended to `apps`, for a test that looks into it.
    """
    async with AsyncExitStack() as stack:

        async def start(
            triton: TritonClient | None, apps: list[web.Application] | None = None, **settings: Any
        ) -> aiohttp.ClientSession:
            tritons = None if triton is None else {"fake:1": triton}
            runner = app_runner(Settings(drain_timeout_s=0, **settings), tritons)
            if apps is not None:
                apps.append(runner.app)
            return await client_of(runner, stack)

        yield start


async def client_of(runner: ConnectionRunner, stack: AsyncExitStack) -> aiohttp.ClientSession:
    """Have an application listen until the stack is left, and return a client of it."""
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    [(_, port)] = await runner.listen(host="127.0.0.1", port=0)
    return await stack.enter_async_context(aiohttp.ClientSession(f"http://127.0.0.1:{port}"))
