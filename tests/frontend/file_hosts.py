"""A host on loopback from which images and documents are fetched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from tests.launching import free_port


@asynccontextmanager
async def file_host(files: Mapping[str, bytes], asked: list[str] | None = None) -> AsyncIterator[str]:
    """Serve files, and yield the host with its port.

    Args:
        files: by path. /moved leads to the path or URL in `to`, and the answer of /held does not end.
        asked: gets the paths that are asked for.
    """
    end = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if asked is not None:
            asked.append(request.path)
        if request.path == "/moved":
            raise web.HTTPFound(request.query["to"])
        if request.path == "/held":
            response = web.StreamResponse()
            await response.prepare(request)
            await end.wait()
            return response
        if request.path not in files:
            raise web.HTTPNotFound
        return web.Response(body=files[request.path])

    app, port = web.Application(), free_port()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"localhost:{port}"
    finally:
        end.set()
        await runner.cleanup()
