"""Takes one endpoint out of service: frontends send what comes to others, what runs there comes to its end."""

from __future__ import annotations

import asyncio
import time

from frontend.errors import APIError
from frontend.triton.client import TritonClient

_POLL_S = 0.1
_STATS_DEADLINE_S = 2.0


async def drain_endpoint(endpoint: str, *, notice_s: float, timeout_s: float) -> tuple[bool, str]:
    """Return whether nothing runs at an endpoint any more, and one line that says so.

    Args:
        endpoint: the Triton's.
        notice_s: in which every frontend has looked at its engines once; until then requests may still come.
        timeout_s: for what runs to end, the notice included.
    """
    start_s = time.monotonic()
    triton = TritonClient(endpoint)
    try:
        slugs = [model.slug for model in (await triton.snapshot()).ready.values()]
        for slug in slugs:
            await triton.drain(slug)
        while True:
            held = [await triton.engine_stats(slug, _STATS_DEADLINE_S) for slug in slugs]
            num_running = sum(stats.num_active + stats.num_waiting for stats in held)
            passed_s = time.monotonic() - start_s
            if passed_s >= notice_s and not num_running:
                return True, f"nothing runs at {endpoint} any more"
            if passed_s >= timeout_s:
                return False, f"{num_running} requests still run at {endpoint} after {timeout_s:g} s"
            await asyncio.sleep(_POLL_S)
    except APIError as exc:
        return False, f"{exc.code}: {exc.message}"
    finally:
        await triton.close()
