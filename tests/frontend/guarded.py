"""The real application over a fake Triton, on an event loop with a guard."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest.mock import patch

from frontend.server import app_runner
from frontend.settings import Settings
from frontend.telemetry.log_lines import JsonFormatter
from frontend.triton import health_monitor
from tests.frontend.acting_triton import acting
from tests.loop_guard import LoopGuard
from tests.waiting import DEADLINE_S


class GuardedServer:
    """A frontend in a thread of its own.

    Args:
        port: its port.
        loop: its event loop.
        guard: of the loop.
    """

    def __init__(self, port: int, loop: asyncio.AbstractEventLoop, guard: LoopGuard) -> None:
        self.guard = guard
        self._port = port
        self._loop = loop
        self.status = 0  # of the last answer
        self.answer = b""

    def complaint(self, name: str, raw: bytes, patience_s: float = DEADLINE_S) -> str | None:
        """Return what a request does on the loop in one piece, if that is too long; see `send`."""
        return self.guard.complaint(name, lambda: self.send(raw, patience_s))

    def send(self, raw: bytes, patience_s: float = DEADLINE_S) -> None:
        """Send a request, read until the server closes the connection, and wait for what is left to do for it.

        Args:
            patience_s: for each piece of the answer; shorter for a request whose end never comes.
        """
        with _log_lines(), socket.create_connection(("127.0.0.1", self._port), timeout=patience_s) as client:
            pieces = []
            with suppress(OSError):  # it was refused before all of it was sent
                client.sendall(raw)
            with suppress(ConnectionResetError, TimeoutError):
                while piece := client.recv(1 << 20):
                    pieces.append(piece)
            self.answer = b"".join(pieces)
            self.status = int(self.answer[9:12] or 0)
            asyncio.run_coroutine_threadsafe(_settled(), self._loop).result(DEADLINE_S)


async def _settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class _LogLines(logging.Handler):
    """Writes the lines of both formats to nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self._formats = logging.Formatter(), JsonFormatter()

    def emit(self, record: logging.LogRecord) -> None:
        for each in self._formats:
            each.format(record)


@contextmanager
def _log_lines() -> Iterator[None]:
    """Write a server's lines within a block, and keep them from pytest. Other tests run between two requests."""
    logger, handler = logging.getLogger("frontend"), _LogLines()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = True


@contextmanager
def guarded_server(*, has_threads: bool = False) -> Iterator[GuardedServer]:
    """Serve while the block runs; see LoopGuard for `has_threads`."""
    started: list[GuardedServer] = []
    is_listening, stops = threading.Event(), threading.Event()

    async def serve(endpoint: str, guard: LoopGuard) -> None:
        runner = app_runner(Settings(drain_timeout_s=0, triton_endpoints=(endpoint,)))
        await runner.setup()
        [(_, port)] = await runner.listen(host="127.0.0.1", port=0)
        started.append(GuardedServer(port, asyncio.get_running_loop(), guard))
        is_listening.set()
        await asyncio.to_thread(stops.wait)
        await runner.cleanup()

    def run(endpoint: str) -> None:
        guard = LoopGuard(threading.get_ident(), has_threads=has_threads)
        try:
            with guard.watching():
                asyncio.run(serve(endpoint, guard))
        finally:
            is_listening.set()

    # A busy machine may delay the fake Triton: it must not count as lost.
    with acting() as endpoint, patch.object(health_monitor, "STATS_TIMEOUT_S", DEADLINE_S):
        thread = threading.Thread(target=run, args=[endpoint])
        thread.start()
        try:
            is_listening.wait(DEADLINE_S)
            yield started[0]
        finally:
            stops.set()
            thread.join()
