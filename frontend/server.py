"""Runs the application on a port until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal

import uvloop
from aiohttp import web

from frontend.app import create_app
from frontend.models import Triton
from frontend.settings import Settings

logger = logging.getLogger(__name__)


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code, 1 when the port cannot be had."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings))


def app_runner(settings: Settings, triton: Triton | None = None) -> web.AppRunner:
    """Return what runs the application; not set up."""
    return web.AppRunner(
        create_app(settings, triton),
        handler_cancellation=True,  # without it aiohttp lets a handler go on whose client is gone
        access_log=None,
        shutdown_timeout=settings.shutdown_timeout_s,
    )


async def _serve(settings: Settings) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = app_runner(settings)
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.host, settings.port).start()
        for host, port, *_ in runner.addresses:
            logger.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
        await stop.wait()
        logger.info("stopping")
    except OSError as exc:
        logger.error("cannot listen on %s port %d: %s", settings.host, settings.port, exc.strerror or exc)
        return 1
    finally:
        await runner.cleanup()
    return 0
