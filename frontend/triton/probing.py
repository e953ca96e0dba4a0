"""What commands ask one endpoint, each on a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from frontend.probe import probe
from frontend.quiet import wait_until_quiet
from frontend.triton.client import TritonClient

_CLOSE_TIMEOUT_S = 0.5


async def probe_endpoint(
    endpoint: str, *, model: str, deadline_s: float, stall_s: float, is_generating: bool
) -> tuple[bool, str]:
    """Return whether the engines behind an endpoint work, and why; the arguments are those of `probe`."""
    async with _connected(endpoint) as client:
        return await probe(client, model=model, deadline_s=deadline_s, stall_s=stall_s, is_generating=is_generating)


async def wait_until_endpoint_is_quiet(endpoint: str, *, pause_s: float, timeout_s: float) -> tuple[bool, str]:
    """Return whether an endpoint's engines have nothing under way, and why; the arguments are `wait_until_quiet`'s."""
    async with _connected(endpoint) as client:
        return await wait_until_quiet(client, pause_s=pause_s, timeout_s=timeout_s)


@contextlib.asynccontextmanager
async def _connected(endpoint: str) -> AsyncIterator[TritonClient]:
    client = TritonClient(endpoint)
    try:
        yield client
    finally:
        with contextlib.suppress(TimeoutError):  # a server that hangs takes no cancellations either
            await asyncio.wait_for(client.close(), _CLOSE_TIMEOUT_S)
