"""Runs an application on our connections."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from frontend.connections.connection import LINGERING_S, Connection
from frontend.connections.refusals import PARSER_LIMITS
from frontend.settings import Settings

CLOSE_TIMEOUT_S = 3.0  # for the last bytes of answers, after the drain


class ConnectionRunner(web.AppRunner):
    """aiohttp's runner with our connections; not set up."""

    def __init__(self, app: web.Application, settings: Settings) -> None:
        super().__init__(
            app,
            handler_cancellation=True,  # a client's hang-up cancels its handler
            access_log=None,
            shutdown_timeout=min(settings.drain_timeout_s, CLOSE_TIMEOUT_S),
            keepalive_timeout=settings.idle_timeout_s,
            lingering_time=LINGERING_S,
            **PARSER_LIMITS,
        )

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server())


class _Server(web.Server):
    """A copy of aiohttp's server with our connections."""

    def __init__(self, made: web.Server) -> None:
        super().__init__(
            made.request_handler,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            **made._kwargs,
        )

    def __call__(self) -> web.RequestHandler:
        options: dict[str, Any] = self._kwargs
        return Connection(self, loop=self._loop, **options)
