"""The admission process's side of its socket: one limiter for all workers, and nothing is held by one that is gone."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import orjson

from frontend.errors import APIError, ServerError
from frontend.gateway.types import Lease, Limiter
from frontend.gateway.wire import ask_from_wire, error_to_wire, lease_to_wire, line

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
            self._limiter.release(lease, lease.ask.num_tokens)
        self._leases.clear()

    def _do(self, message: dict[str, Any]) -> None:
        number = message["number"]
        match message["do"]:
            case "acquire":
                task = asyncio.create_task(self._acquire(number, message["ask"]))
                self._waiting[number] = task
                task.add_done_callback(lambda _: self._waiting.pop(number, None))
            case "release":
                self._release(number, message["num_tokens"])
            case "cancel":
                if number in self._waiting:
                    self._waiting[number].cancel()
                self._release(number, 0)

    async def _acquire(self, number: int, ask: dict[str, Any]) -> None:
        try:
            lease = await self._limiter.acquire(ask_from_wire(ask))
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
