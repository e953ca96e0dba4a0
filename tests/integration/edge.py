"""A frontend in this process before the stack's Triton. Tests count its tasks and descriptors, and use raw sockets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from frontend.server import app_runner
from frontend.settings import Settings
from tests.integration.stack import Stack

EDGE_DEADLINE_S = 60.0  # only a hang reaches it


@asynccontextmanager
async def serving(stack: Stack, **settings: Any) -> AsyncIterator[int]:
    """Run a frontend on the stack's Triton; yield its port."""
    runner = app_runner(Settings(triton_endpoints=(stack.endpoint,), **settings))
    await runner.setup()
    try:
        [(_, port)] = await runner.listen(host="127.0.0.1", port=0)
        yield port
    finally:
        await runner.cleanup()


async def exchange(port: int, raw: bytes) -> bytes:
    """Send bytes; return what comes until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        return await asyncio.wait_for(reader.read(), EDGE_DEADLINE_S)
    except TimeoutError:
        return b"hang"
    except ConnectionResetError:
        return b"reset"
    finally:
        writer.transport.abort()


def open_files() -> int:
    """Return how many descriptors this process has open; the frontend's sockets are among them."""
    return len(os.listdir("/proc/self/fd"))
