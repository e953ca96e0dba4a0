"""The commands `probe` and `drain`: one endpoint, on a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
import time

from frontend.errors import APIError
from frontend.settings import Settings
from frontend.triton.channel import triton_credentials
from frontend.triton.client import TritonClient
from frontend.triton.probe import ProbeResult, probe

_CLOSE_TIMEOUT_S = 0.5
_POLL_S = 0.1  # between two questions to an engine that drains
_STATS_DEADLINE_S = 2.0


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


async def drain_endpoint(
    settings: Settings, *, notice_s: float, timeout_s: float, is_undone: bool = False
) -> tuple[bool, str]:
    """Return whether nothing runs at the first endpoint any more, and one line that says so.

    Args:
        settings: where it is, and how it is connected to.
        notice_s: in which every frontend has looked at its engines once; until then requests may still come.
        timeout_s: for what runs to end, the notice included.
        is_undone: only take an earlier drain back.

    Raises:
        SettingsError: the files for TLS are of no use.
    """
    start_s, endpoint = time.monotonic(), settings.triton_endpoints[0]
    triton = TritonClient(endpoint, triton_credentials(settings), settings.triton_tls_name, key=settings.triton_key)
    try:
        slugs = [model.slug for model in (await triton.snapshot()).ready.values()]
        for slug in slugs:
            await triton.drain(slug, is_draining=not is_undone)
        while not is_undone:
            held = [await triton.engine_stats(slug, _STATS_DEADLINE_S) for slug in slugs]
            num_running = sum(stats.num_active + stats.num_waiting for stats in held)
            num_streams = sum(stats.num_streams for stats in held)  # Triton does not end well while one is open
            passed_s = time.monotonic() - start_s
            if passed_s >= notice_s and not num_running and not num_streams:
                return True, f"nothing runs at {endpoint} any more"
            if passed_s >= timeout_s:
                return False, f"{num_running} requests still run at {endpoint} after {timeout_s:g} s"
            await asyncio.sleep(_POLL_S)
        return True, f"{endpoint} takes requests again"
    except APIError as exc:
        return False, f"{exc.code}: {exc}"
    finally:
        await triton.close()
