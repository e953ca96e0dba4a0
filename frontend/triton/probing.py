"""A probe of one endpoint on a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib

from frontend.probe import ProbeResult, probe
from frontend.triton.client import TritonClient

_CLOSE_TIMEOUT_S = 0.5


async def probe_endpoint(
    endpoint: str, *, model: str, deadline_s: float, stall_s: float, is_generating: bool
) -> ProbeResult:
    """Return whether the engines behind an endpoint work, and why; the arguments are those of `probe`."""
    client = TritonClient(endpoint)
    try:
        return await probe(client, model=model, deadline_s=deadline_s, stall_s=stall_s, is_generating=is_generating)
    finally:
        with contextlib.suppress(TimeoutError):  # a server that hangs takes no cancellations either
            await asyncio.wait_for(client.close(), _CLOSE_TIMEOUT_S)
