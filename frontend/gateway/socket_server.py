"""The admission process: one limiter for several workers, on a Unix socket. A worker asks once for each request, never
for a token, and holds nothing once it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from typing import Any, cast

import orjson
import uvloop

from frontend.errors import APIError, ServerError
from frontend.gateway.policy import deciding_limiter_of
from frontend.gateway.types import Lease, Limiter
from frontend.gateway.wire import error_to_wire, lease_to_wire, line, request_from_wire
from frontend.settings import Settings

logger = logging.getLogger(__name__)


class WorkerConnection(asyncio.Protocol):
    """One worker: `acquire` is answered once, `release` and `cancel` never are.

    Args:
        limiter: for all workers.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._unread = b""
        self._waiting: dict[int, asyncio.Task[None]] = {}
        self._leases: dict[int, Lease] = {}
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        """Do what the whole lines say."""
        *lines, self._unread = (self._unread + data).split(b"\n")
        for each in lines:
            self._do(orjson.loads(each))

    def connection_lost(self, exc: Exception | None) -> None:
        """Give back what the worker held. What its requests used nobody knows: they stay charged as estimated."""
        self._transport = None
        for task in self._waiting.values():
            task.cancel()
        for lease in self._leases.values():
            self._limiter.release(lease, lease.request.num_tokens)
        self._leases.clear()

    def _do(self, message: dict[str, Any]) -> None:
        number = message["number"]
        match message["do"]:
            case "acquire":
                task = asyncio.create_task(self._acquire(number, message["request"]))
                self._waiting[number] = task
                task.add_done_callback(lambda _: self._waiting.pop(number, None))
            case "release":
                self._release(number, message["num_tokens"])
            case "cancel":
                if number in self._waiting:
                    self._waiting[number].cancel()
                self._release(number, 0)

    async def _acquire(self, number: int, request: dict[str, Any]) -> None:
        try:
            lease = await self._limiter.acquire(request_from_wire(request))
        except APIError as exc:
            self._answer(number, error_to_wire(exc))
        except Exception:
            logger.exception("unexpected exception while a request was admitted")
            self._answer(number, error_to_wire(ServerError()))
        else:
            self._leases[number] = lease
            self._answer(number, lease_to_wire(lease))

    def _release(self, number: int, num_tokens: int) -> None:
        lease = self._leases.pop(number, None)
        if lease is not None:
            self._limiter.release(lease, num_tokens)

    def _answer(self, number: int, answer: dict[str, Any]) -> None:
        if self._transport is not None:
            self._transport.write(line({"number": number, **answer}))
        else:
            self._release(number, 0)


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
