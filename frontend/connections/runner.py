"""Runs an application on connections of our own kind."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from frontend.connections.connection import LINGERING_S, Connection
from frontend.connections.refusals import parser_limits
from frontend.settings import Settings

CLOSE_TIMEOUT_S = 3.0  # for the last bytes of answers, after the drain


class ConnectionRunner(web.AppRunner):
    """What runs an application; not set up.

    Args:
        app: the application.
        settings: the limits of its connections.
    """

    __slots__ = ("_settings",)

    def __init__(self, app: web.Application, settings: Settings) -> None:
        super().__init__(
            app,
            handler_cancellation=True,  # without it aiohttp lets a handler go on whose client is gone
            access_log=None,
            shutdown_timeout=min(settings.drain_timeout_s, CLOSE_TIMEOUT_S),
            keepalive_timeout=settings.keepalive_timeout_s,
            lingering_time=LINGERING_S,
            **parser_limits(settings),
        )
        self._settings = settings

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server(), self._settings)


class _Server(web.Server):
    """A server as aiohttp made it, but for the kind of its connections."""

    def __init__(self, made: web.Server, settings: Settings) -> None:
        super().__init__(
            made.request_handler,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            **made._kwargs,
        )
        self._settings = settings

    def __call__(self) -> web.RequestHandler:
        options: dict[str, Any] = self._kwargs
        return Connection(self, loop=self._loop, settings=self._settings, **options)
