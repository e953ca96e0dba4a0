"""A probe of one endpoint on a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib

from frontend.settings import Settings
from frontend.triton.client import TritonClient
from frontend.triton.credentials import triton_credentials
from frontend.triton.probe import ProbeResult, probe

_CLOSE_TIMEOUT_S = 0.5


async def probe_endpoint(settings: Settings, *, model: str, is_generating: bool) -> ProbeResult:
    """Return whether the engines behind the first endpoint work, and why; the arguments are those of `probe`.

    Raises:
        SettingsError: the files for TLS are of no use.
    """
    client = TritonClient(
        settings.triton_endpoints[0], triton_credentials(settings), settings.triton_tls_name, key=settings.triton_key
    )
    try:
        return await probe(
            client,
            model=model,
            deadline_s=settings.stats_deadline_s,
            stall_s=settings.engine_stall_s,
            is_generating=is_generating,
        )
    finally:
        with contextlib.suppress(TimeoutError):  # a server that hangs takes no cancellations either
            await asyncio.wait_for(client.close(), _CLOSE_TIMEOUT_S)
