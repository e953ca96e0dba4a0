"""Runs the application on a port until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable

import uvloop
from aiohttp import web

from frontend.app import create_app
from frontend.connections.certificates import Certificates
from frontend.connections.runner import ConnectionRunner
from frontend.models import Triton
from frontend.settings import Settings

logger = logging.getLogger(__name__)


def run(settings: Settings, *, parent: int | None = None, on_listening: Callable[[], None] = lambda: None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code, 1 when the port cannot be had.

    Args:
        settings: what to serve, and where.
        parent: of one of several workers on the port: a file descriptor that closes when their parent is gone.
        on_listening: called once the port is open.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, parent, on_listening))


def app_runner(settings: Settings, triton: Triton | None = None) -> web.AppRunner:
    """Return what runs the application; not set up."""
    return ConnectionRunner(create_app(settings, triton), settings)


def log_unavailable(settings: Settings, exc: OSError) -> None:
    """Say that the port cannot be had, and why."""
    logger.error("cannot listen on %s port %d: %s", settings.host, settings.port, exc.strerror or exc)


async def _serve(settings: Settings, parent: int | None, on_listening: Callable[[], None]) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if parent is not None:
        loop.add_reader(parent, stop.set)
    certificates = Certificates(settings) if settings.tls_cert else None
    following = loop.create_task(certificates.follow()) if certificates is not None else None
    context, scheme = (certificates.context, "https") if certificates is not None else (None, "http")
    runner = app_runner(settings)
    await runner.setup()
    try:
        is_shared = parent is not None
        site = web.TCPSite(runner, settings.host, settings.port, ssl_context=context, reuse_port=is_shared)
        await site.start()
        for host, port, *_ in runner.addresses:
            name = f"[{host}]" if ":" in host else host
            logger.info("process %d listens on %s://%s:%d", os.getpid(), scheme, name, port)
        on_listening()
        await stop.wait()
        logger.info("stopping")
    except OSError as exc:
        log_unavailable(settings, exc)
        return 1
    finally:
        if parent is not None:
            loop.remove_reader(parent)
        if following is not None:
            following.cancel()
        await runner.cleanup()
    return 0
