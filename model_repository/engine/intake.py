"""Requests on their way into the engine: their output stream, grammars and images, and the reasons to refuse them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from model_repository.contract.request import EngineRequest, EngineRequestBatch
from model_repository.contract.rules import printable_id
from model_repository.engine.inbox import Arrival, Inbox
from model_repository.engine.output_streams import OutputResponder, OutputStream, OutputStreams
from model_repository.engine.pending_cancels import PendingCancels
from model_repository.engine.runtime import Prepared, Runtime
from model_repository.errors import EngineFailed, InternalError, InvalidRequest, StageError, error_from_message
from model_repository.fair_pool import FairPool

logger = logging.getLogger(__name__)

_NUM_GRAMMAR_THREADS = 2


class Intake:
    """Receives requests in the engine's thread, and prepares their grammars and images in threads of its own.

    It also knows the cancelled requests that the engine does not have yet.

    Args:
        runtime: prepares the requests.
        inbox: gets the prepared requests.
    """

    def __init__(self, runtime: Runtime, streams: OutputStreams, inbox: Inbox, clock: Callable[[], float]) -> None:
        self._runtime = runtime
        self._streams = streams
        self._inbox = inbox
        self._pending_cancels = PendingCancels(clock)
        self._preparing: dict[str, bool] = {}  # cancel key to whether it is cancelled
        self._grammar_threads = FairPool(_NUM_GRAMMAR_THREADS)
        self._image_threads = FairPool(1, "images")
        self._is_closing = False

    def receive(self, batch: EngineRequestBatch, responder: OutputResponder) -> Iterator[Arrival]:
        """Yield the requests of a batch that may start at once. The others come to the inbox when they are prepared."""
        try:
            stream = self._stream_of(batch, responder)
        except StageError as error:
            with contextlib.suppress(Exception):
                responder.fail(error)
            return
        for item, received in batch.items:
            if isinstance(received, str):
                stream.fail(item, error_from_message(received) or InternalError())
                continue
            arrival = Arrival(stream, item, replace(received, request_id=printable_id(received.request_id)))
            if received.images:
                yield from self._submit(self._image_threads, arrival)
            elif received.grammar or received.params.bad_words:
                yield from self._submit(self._grammar_threads, arrival)
            else:
                yield arrival

    def finish(self, arrival: Arrival) -> None:
        """Note that a request is prepared."""
        arrival.stream.num_preparing -= 1
        key = arrival.request.params.cancel_key
        if self._preparing.pop(key, False):
            self._pending_cancels.add(key)  # it may have been forgotten meanwhile

    def cancel(self, key: str) -> None:
        """Cancel a request that the engine does not have. It is not prepared, if it waits for that."""
        self._pending_cancels.add(key)
        if key in self._preparing:
            self._preparing[key] = True

    def take_cancel(self, key: str) -> bool:
        """Return whether the request with this key was cancelled before it arrived, and forget that."""
        return self._pending_cancels.pop(key)

    def close(self) -> None:
        """End the threads, from any thread; waiting requests are dropped."""
        self._is_closing = True
        self._grammar_threads.close()
        self._image_threads.close()

    def _stream_of(self, batch: EngineRequestBatch, responder: OutputResponder) -> OutputStream:
        """Return the stream that a batch names; without a name, a stream to the responder itself.

        Raises:
            OutputStreamNotOpen: the named stream does not exist.
            InvalidRequest: the batch has several requests and names no stream.
        """
        if batch.stream:
            stream = self._streams.find(batch.stream)
            with contextlib.suppress(Exception):
                responder.close()  # the outputs go to the stream
            return stream
        if len(batch.items) != 1:
            raise InvalidRequest("exactly one request is allowed without an output stream", "engine_requests")
        [(_, request)] = batch.items
        has_key = isinstance(request, EngineRequest) and bool(request.params.cancel_key)
        return self._streams.open_single(responder, has_cancel_key=has_key)

    def _submit(self, threads: FairPool, arrival: Arrival) -> Iterator[Arrival]:
        """Prepare a request in a thread; yield it with the reason if the threads refuse it."""
        params = arrival.request.params
        try:
            threads.submit(params.sender, lambda: self._prepare(arrival))
        except StageError as error:
            yield replace(arrival, error=error)
        except RuntimeError:  # the threads have ended
            yield replace(arrival, error=EngineFailed("the engine is shutting down"))
        else:
            arrival.stream.num_preparing += 1
            if params.cancel_key:
                self._preparing[params.cancel_key] = False

    def _prepare(self, arrival: Arrival) -> None:
        """Prepare a request, in a thread for which no sequence waits."""
        request = arrival.request
        try:
            if self._is_closing:
                raise EngineFailed("the engine is shutting down")
            is_wanted = arrival.stream.is_open and not self._preparing.get(request.params.cancel_key)
            prepared = self._runtime.prepare(request) if is_wanted else Prepared(request)
            arrival = replace(arrival, request=prepared.request, prepared=prepared)
        except StageError as error:
            arrival = replace(arrival, error=error)
        except BaseException:  # a panic in Rust code too
            logger.exception("the runtime did not prepare request_id=%s", request.request_id)
            arrival = replace(arrival, error=InternalError())
        self._inbox.put(arrival)
