"""Runs an application on our connections."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from aiohttp import web

from frontend.connections.connection import HEADER_TIMEOUT_S, LINGERING_S, Connection
from frontend.connections.crowd import Crowd
from frontend.connections.refusals import PARSER_LIMITS
from frontend.settings import Settings

CLOSE_TIMEOUT_S = 3.0  # for the last bytes of answers, after the drain


class ConnectionRunner(web.AppRunner):
    """aiohttp's runner with our connections; not set up.

    Args:
        app: the application.
        settings: with the timeouts.
        max_connections: that may be open; `Crowd` closes some of the others.
        handler_cancellation: a client's hang-up cancels its handler.
    """

    def __init__(
        self, app: web.Application, settings: Settings, max_connections: int, *, handler_cancellation: bool = True
    ) -> None:
        self._crowd = Crowd(max_connections)
        super().__init__(
            app,
            handler_cancellation=handler_cancellation,
            access_log=None,
            shutdown_timeout=min(settings.drain_timeout_s, CLOSE_TIMEOUT_S),
            keepalive_timeout=settings.idle_timeout_s,
            lingering_time=LINGERING_S,
            **PARSER_LIMITS,
        )

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server(), self._crowd)


class Site(web.BaseSite):
    """aiohttp's site with a deadline for TLS handshakes, which is that of heads.

    Args:
        runner: a runner; set up.
        ssl_context: for TLS; None: no TLS.
        where: arguments of `create_server`: host and port, or a socket.
    """

    def __init__(self, runner: web.AppRunner, ssl_context: ssl.SSLContext | None, **where: Any) -> None:
        super().__init__(runner, ssl_context=ssl_context)
        self._where = where

    @property
    def name(self) -> str:
        """The name for aiohttp's errors."""
        return str(self._where)

    async def start(self) -> None:
        """Listen."""
        await super().start()
        deadline: dict[str, Any] = {} if self._ssl_context is None else {"ssl_handshake_timeout": HEADER_TIMEOUT_S}
        assert self._runner.server is not None
        self._server = await asyncio.get_running_loop().create_server(
            self._runner.server, ssl=self._ssl_context, backlog=self._backlog, **deadline, **self._where
        )


class _Server(web.Server):
    """A copy of aiohttp's server with our connections."""

    def __init__(self, made: web.Server, crowd: Crowd) -> None:
        self._crowd = crowd
        super().__init__(
            made.request_handler,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            **made._kwargs,
        )

    def __call__(self) -> web.RequestHandler:
        options: dict[str, Any] = self._kwargs
        return Connection(self, self._crowd, loop=self._loop, **options)
