"""The small process in which the limits of several workers are kept: asked once for each request, never for a token."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable

import uvloop

from frontend.gateway.policy import deciding_limiter_of
from frontend.gateway.socket_server import WorkerConnection
from frontend.settings import Settings

logger = logging.getLogger(__name__)


def run(settings: Settings, *, parent: int, on_listening: Callable[[], None]) -> None:
    """Serve until SIGTERM, or until the parent is gone.

    Args:
        settings: with the socket's path.
        parent: a file descriptor that closes when the parent of the workers is gone.
        on_listening: called once workers can connect.
    """
    os.umask(0o177)  # the socket is never another user's, not for a moment
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, parent, on_listening))


async def _serve(settings: Settings, parent: int, on_listening: Callable[[], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    for number in (signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: None)  # of a whole group: the workers still settle
    loop.add_reader(parent, stop.set)
    limiter = deciding_limiter_of(settings)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(settings.limits_socket)  # of a process that was killed
    server = await loop.create_unix_server(lambda: WorkerConnection(limiter), settings.limits_socket)
    logger.info("the admission process %d serves %s", os.getpid(), settings.limits_socket)
    on_listening()
    await stop.wait()
    loop.remove_reader(parent)
    server.close()
    await limiter.close()
