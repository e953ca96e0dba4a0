"""The messages that other threads send to the engine's thread."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import msgspec

from model_repository.contract.request import EngineRequest, EngineRequestBatch
from model_repository.engine.adapters.folder import Adapter
from model_repository.engine.output_streams import OutputResponder, OutputStream
from model_repository.engine.runtime import Prepared
from model_repository.errors import StageError


class Submit(msgspec.Struct, frozen=True):
    """Start requests. Their outputs go to the named stream, or to the responder if the batch names no stream."""

    batch: EngineRequestBatch
    responder: OutputResponder


class Arrival(msgspec.Struct, frozen=True):
    """Start a request, after the slow part of its preparation or without one, or refuse it."""

    stream: OutputStream
    item: int  # the client's number for it
    request: EngineRequest
    prepared: Prepared | None = None
    error: StageError | None = None  # the reason to refuse it


class OpenStream(msgspec.Struct, frozen=True):
    """Open an output stream for the requests that name this key; its first batch is empty."""

    key: str
    responder: OutputResponder


class CancelKey(msgspec.Struct, frozen=True):
    """Cancel the request with this cancel key, even if it arrives later."""

    key: str
    arrived_s: float = msgspec.field(default_factory=time.monotonic)


class EndStream(msgspec.Struct, frozen=True):
    """End the output stream with this number, and cancel its sequences: its client is gone."""

    number: int
    arrived_s: float = msgspec.field(default_factory=time.monotonic)


class FailRunning(msgspec.Struct, frozen=True):
    """End all running and waiting requests with an error: the model is being unloaded, and the time is up."""


class FailStreams(msgspec.Struct, frozen=True):
    """End all requests and all output streams: a stage behind the engine has been unloaded."""


class SetAdapter(msgspec.Struct, frozen=True):
    """Load a LoRA adapter under a name, or unload it."""

    name: str
    adapter: Adapter | None  # None: unload
    done: Future[None] = msgspec.field(default_factory=Future)


class Close(msgspec.Struct, frozen=True):
    """Fail the running requests, and end the thread."""


type Message = Submit | Arrival | OpenStream | CancelKey | EndStream | FailRunning | FailStreams | SetAdapter | Close


class Inbox:
    """A queue of messages. Any thread may write, and the engine's thread reads.

    Args:
        wake: called after each message, so that a waiting step returns.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._queue: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._wake = wake

    def put(self, message: Message) -> None:
        """Add a message."""
        self._queue.put(message)
        self._wake()

    def read(self, timeout_s: float | None) -> Iterator[Message]:
        """Yield all messages. Wait for the first one; None: without a limit."""
        try:
            yield self._queue.get(timeout=timeout_s)
            while True:
                yield self._queue.get_nowait()
        except queue.Empty:
            return
