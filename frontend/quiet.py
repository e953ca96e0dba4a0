"""Waits until a Triton has nothing under way, since Triton itself cannot: told to end, it takes no further step of an
ensemble, also of a request that has begun.
"""

from __future__ import annotations

import asyncio

from frontend.errors import APIError
from frontend.probe import Probed

_POLL_S = 0.2
_DEADLINE_S = 5.0  # of one look at an engine


async def wait_until_quiet(triton: Probed, *, pause_s: float, timeout_s: float) -> tuple[bool, str]:
    """Return whether no engine has a sequence any more, and one line that says so.

    Args:
        triton: the endpoint. Where it does not answer there is nothing to wait for.
        pause_s: before the first look, in which those who send requests may learn that they are to go elsewhere.
        timeout_s: after the pause.
    """
    await asyncio.sleep(pause_s)
    num_sequences = 0
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                num_sequences = await _num_sequences(triton)
                if not num_sequences:
                    return True, "nothing is under way"
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        return False, f"{num_sequences} sequences are under way after {timeout_s:g} s"
    except APIError as exc:
        return True, f"nothing answers ({exc.code})"


async def _num_sequences(triton: Probed) -> int:
    slugs = [served.slug for served in (await triton.snapshot()).ready.values()]
    found = [await triton.engine_stats(slug, _DEADLINE_S) for slug in slugs]
    return sum(stats.num_active + stats.num_waiting for stats in found)
