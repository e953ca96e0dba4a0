"""Runs the application on a port until it is told to stop."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
from collections.abc import Callable, Mapping

import uvloop
from aiohttp import web

from frontend.app import create_app
from frontend.drain import Drain
from frontend.handlers.context import TRITON
from frontend.models import Triton
from frontend.settings import Settings

logger = logging.getLogger(__name__)

DRAIN_SIGNAL = signal.SIGUSR1  # take no more requests, but do not end yet

_CLOSE_TIMEOUT_S = 3.0  # for the last bytes of answers, after the drain


def run(settings: Settings, *, parent: int | None = None, on_listening: Callable[[], None] = lambda: None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code, 1 when the port cannot be had.

    Args:
        settings: what to serve, and where.
        parent: of one of several workers on the port: a file descriptor that closes when their parent is gone.
        on_listening: called once the port is open.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, parent, on_listening))


def app_runner(
    settings: Settings, tritons: Mapping[str, Triton] | None = None, drain: Drain | None = None
) -> web.AppRunner:
    """Return what runs the application; not set up. The arguments are those of `create_app`."""
    return web.AppRunner(
        create_app(settings, tritons, drain),
        handler_cancellation=True,  # without it aiohttp lets a handler go on whose client is gone
        access_log=None,
        shutdown_timeout=min(settings.drain_timeout_s, _CLOSE_TIMEOUT_S),
    )


def log_unavailable(settings: Settings, exc: OSError) -> None:
    """Say that the port cannot be had, and why."""
    logger.error("cannot listen on %s port %d: %s", settings.host, settings.port, exc.strerror or exc)


async def _serve(settings: Settings, parent: int | None, on_listening: Callable[[], None]) -> int:
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    drain = Drain(functools.partial(os.kill, os.getppid(), DRAIN_SIGNAL) if parent is not None else lambda: None)
    loop.add_signal_handler(signal.SIGTERM, on_signal)
    # Ctrl-C reaches the parent of several workers too, which tells them: one signal must not count twice.
    loop.add_signal_handler(signal.SIGINT, on_signal if parent is None else lambda: None)
    loop.add_signal_handler(DRAIN_SIGNAL, drain.begin)
    if parent is not None:
        loop.add_reader(parent, stop.set)
    runner = app_runner(settings, drain=drain)
    await runner.setup()
    try:
        await web.TCPSite(runner, settings.host, settings.port, reuse_port=parent is not None).start()
        for host, port, *_ in runner.addresses:
            logger.info("process %d listens on http://%s:%d", os.getpid(), f"[{host}]" if ":" in host else host, port)
        on_listening()
        await stop.wait()
        logger.info("stopping")
        # The port stays open: whoever comes is told to go elsewhere, and asks for the readiness in vain.
        await drain.finish(settings.drain_timeout_s, hurry, runner.app[TRITON].end_all)
    except OSError as exc:
        log_unavailable(settings, exc)
        return 1
    finally:
        if parent is not None:
            loop.remove_reader(parent)
        await runner.cleanup()
    return 0
