"""One limiter for several workers: the admission process decides, and each worker has one connection to it.

A completion takes three messages to the process and one back; each is a line of JSON. When a connection is lost, the
process releases its leases. The process also has the memory in which the workers store conversations.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import os
from collections.abc import Callable

import msgspec
import uvloop
from msgspec import Struct

from frontend.errors import APIError, QueueFull, RateLimited, ServerError
from frontend.gateway.limiter import LocalLimiter, local_limiter
from frontend.gateway.outage import LimitsUnavailable, Outage
from frontend.gateway.types import AdmissionRequest, Lease, Reading
from frontend.settings import Settings
from frontend.store.shared import serve_database
from frontend.store.sqlite import MEMORY, SqliteDatabase
from frontend.supervision import END_NOW
from model_repository.system.process_start import ENDING_SIGNALS

logger = logging.getLogger(__name__)

_MARGIN_S = 1.0  # slack after the longest wait in a queue; a process without an answer by then hangs
_REFUSALS = {error.__name__: error for error in (RateLimited, QueueFull)}


class Answer(Struct, frozen=True, array_like=True):
    """To a worker: the request may run, or it ended with an error."""

    number: int
    readings: tuple[Reading, ...] = ()
    error: str = ""  # name of its class
    message: str = ""  # this and the rest: of a refusal
    code: str | None = None
    headers: dict[str, str] = {}

    @classmethod
    def of_error(cls, number: int, error: APIError) -> Answer:
        return cls(number, (), type(error).__name__, error.message, error.code, dict(error.headers))

    def raise_error(self) -> None:
        """Raise the error that the process raised, if any."""
        if self.error in _REFUSALS:
            raise _REFUSALS[self.error](self.message, code=self.code, headers=self.headers)
        if self.error == LimitsUnavailable.__name__:
            raise LimitsUnavailable
        if self.error:
            raise ServerError


# From a worker: the number of a completion, and one of three values: the completion itself, which waits until it may
# run; None when its work has ended; the tokens that its request used.
_FROM_WORKER = msgspec.json.Decoder(tuple[int, AdmissionRequest | int | None])
_TO_WORKER = msgspec.json.Decoder(Answer)
_ENCODER = msgspec.json.Encoder()


def _send(writer: asyncio.StreamWriter, message: object) -> None:
    writer.write(_ENCODER.encode(message) + b"\n")


class SharedLimiter:
    """A worker's limiter, with the interface of `LocalLimiter`.

    Args:
        path: of the admission process's Unix socket.
        max_queue_wait_s: the longest of any model.
        outage: decides about requests while the process does not answer.
    """

    def __init__(self, path: str, max_queue_wait_s: float, outage: Outage) -> None:
        self._path = path
        self._timeout_s = max_queue_wait_s + _MARGIN_S
        self._outage = outage
        self._numbers = itertools.count(1)
        self._connecting = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Future[Answer]] = {}

    @property
    def is_connected(self) -> bool:
        return self._reading is not None and not self._reading.done()

    async def acquire(self, request: AdmissionRequest) -> Lease:
        """Wait until the request may run, and raise the same errors as `LocalLimiter`."""
        number = next(self._numbers)
        answer = None
        if not self._outage.is_pause:
            timeout_s = self._timeout_s if request.is_first else None
            answer = await self._outage.call(self._answer(number, request), timeout_s)
        if answer is None:
            self._outage.pass_or_refuse()
            return Lease("", request)
        answer.raise_error()
        return Lease(str(number), request, answer.readings)

    def leave(self, lease: Lease) -> None:
        """Give the completion's place to the next one, as `LocalLimiter` does."""
        if lease.id:
            self._send(int(lease.id), None)

    def release(self, lease: Lease, num_tokens: int) -> None:
        """End the request and charge the tokens that it used. It neither waits nor fails."""
        if lease.id:
            self._send(int(lease.id), num_tokens)

    async def close(self) -> None:
        """Disconnect."""
        if self._writer is not None and self._reading is not None:
            self._writer.close()
            await self._reading

    async def _answer(self, number: int, request: AdmissionRequest) -> Answer:
        async with self._connecting:
            if not self.is_connected:
                reader, self._writer = await asyncio.open_unix_connection(self._path)
                self._reading = asyncio.create_task(self._read(reader, self._writer))
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        try:
            self._send(number, request)
            return await future
        except BaseException:
            self._send(number, 0)
            raise
        finally:
            del self._answers[number]

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            async for line in reader:
                answer = _TO_WORKER.decode(line)
                future = self._answers.get(answer.number)
                if future is not None and not future.done():
                    future.set_result(answer)
        writer.close()
        for future in self._answers.values():
            if not future.done():
                future.set_exception(ConnectionResetError("the admission process is gone"))

    def _send(self, number: int, message: AdmissionRequest | int | None) -> None:
        if self._writer is not None and self.is_connected:
            _send(self._writer, (number, message))


async def serve_worker(limiter: LocalLimiter, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one worker until it disconnects, then end those that it left."""
    waiting: dict[int, asyncio.Task[None]] = {}
    leases: dict[int, Lease] = {}

    async def acquire(number: int, request: AdmissionRequest) -> None:
        try:
            leases[number] = lease = await limiter.acquire(request)
            _send(writer, Answer(number, lease.readings))
        except APIError as exc:
            _send(writer, Answer.of_error(number, exc))
        except Exception:
            logger.exception("unexpected exception while a request was admitted")
            _send(writer, Answer.of_error(number, ServerError()))

    def forget(number: int, task: asyncio.Task[None]) -> None:
        del waiting[number]

    with contextlib.suppress(OSError, msgspec.DecodeError):
        async for line in reader:
            number, message = _FROM_WORKER.decode(line)
            if isinstance(message, AdmissionRequest):
                task = asyncio.eager_task_factory(asyncio.get_running_loop(), acquire(number, message))
                if not task.done():
                    waiting[number] = task
                    task.add_done_callback(functools.partial(forget, number))
            elif number in leases and message is None:
                limiter.leave(leases[number])
            elif number in leases:
                limiter.release(leases.pop(number), message or 0)
            elif number in waiting:
                waiting[number].cancel()
    for task in waiting.values():
        task.cancel()
    for lease in leases.values():
        limiter.release(lease, lease.request.num_charged_tokens)  # usage unknown, so charge the estimate
    writer.close()


def run(settings: Settings, path: str, store_path: str, *, parent: int, on_listening: Callable[[], None]) -> None:
    """Serve the workers on Unix sockets until END_NOW, or until their parent's end closes the descriptor `parent`."""
    os.umask(0o177)  # the sockets are for this user only, from their first moment on
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, path, store_path, parent, on_listening))


async def _serve(settings: Settings, path: str, store_path: str, parent: int, on_listening: Callable[[], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(END_NOW, stop.set)
    # A terminal, or the supervisor of a service, sends these to every process; the workers still need this one.
    for number in ENDING_SIGNALS:
        loop.add_signal_handler(number, lambda: None)
    loop.add_reader(parent, stop.set)
    limiter, database = local_limiter(settings), SqliteDatabase(MEMORY)
    for each in (path, store_path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(each)  # a killed process left it
    servers = [
        await asyncio.start_unix_server(functools.partial(serve_worker, limiter), path),
        await asyncio.start_unix_server(functools.partial(serve_database, database), store_path),
    ]
    logger.info("the admission process %d serves %s", os.getpid(), path)
    on_listening()
    await stop.wait()
    loop.remove_reader(parent)
    for server in servers:
        server.close()
    await limiter.close()
    await database.close()
