"""Requests on their way into the engine: their output stream, grammars and images, and the reasons to refuse them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from msgspec.structs import replace

from model_repository.contract.request import EngineRequest, EngineRequestBatch
from model_repository.contract.rules import printable_id
from model_repository.engine.output_streams import OutputResponder, OutputStream, OutputStreams
from model_repository.engine.pending_cancels import PendingCancels
from model_repository.engine.runtime import Prepared, Runtime
from model_repository.errors import (
    EngineFailed,
    InternalError,
    InvalidRequest,
    StageError,
    error_from_message,
    stage_error,
)
from model_repository.fair_pool import FairPool

logger = logging.getLogger(__name__)

_NUM_GRAMMAR_THREADS = 2


class Intake:
    """Receives requests in the engine's thread, and prepares their grammars and images in threads of its own.

    Args:
        runtime: prepares the requests.
        pending_cancels: knows the cancelled requests that the engine does not have yet.
        start: queues a request at the runtime, unless it is cancelled; may raise a StageError.
        post: has the engine's thread call a function; callable from any thread.
    """

    def __init__(
        self,
        runtime: Runtime,
        streams: OutputStreams,
        pending_cancels: PendingCancels,
        *,
        start: Callable[[OutputStream, int, EngineRequest, Prepared | None], None],
        post: Callable[[Callable[[], None]], None],
    ) -> None:
        self._runtime = runtime
        self._streams = streams
        self._pending_cancels = pending_cancels
        self._preparing: dict[str, bool] = {}  # by cancel key: whether it is cancelled
        self._start = start
        self._post = post
        self._grammar_threads = FairPool(_NUM_GRAMMAR_THREADS)
        self._image_threads = FairPool(1, "images")
        self._is_closing = False

    def receive(self, batch: EngineRequestBatch, responder: OutputResponder) -> None:
        """Start the requests of a batch, once they are prepared, or fail them on their stream."""
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
            request = replace(received, request_id=printable_id(received.request_id))
            if request.images:
                self._submit(self._image_threads, stream, item, request)
            elif request.structured_output is not None or request.params.bad_words:
                self._submit(self._grammar_threads, stream, item, request)
            else:
                self._admit(stream, item, request)

    def cancel(self, key: str) -> None:
        """Do not prepare the request with this cancel key, if it waits for that."""
        if key in self._preparing:
            self._preparing[key] = True

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
            raise InvalidRequest("without an output stream it must have one request", "engine_requests")
        [(_, request)] = batch.items
        has_key = isinstance(request, EngineRequest) and bool(request.params.cancel_key)
        return self._streams.open_single(responder, has_cancel_key=has_key)

    def _submit(self, threads: FairPool, stream: OutputStream, item: int, request: EngineRequest) -> None:
        """Prepare the request in a thread, and admit it afterwards."""
        try:
            threads.submit(request.params.sender, lambda: self._prepare(stream, item, request))
        except StageError as error:
            self._refuse(stream, item, request, error)
        except RuntimeError:  # the threads have ended
            self._refuse(stream, item, request, EngineFailed("the engine is shutting down"))
        else:
            stream.num_preparing += 1
            if request.params.cancel_key:
                self._preparing[request.params.cancel_key] = False

    def _prepare(self, stream: OutputStream, item: int, request: EngineRequest) -> None:
        """Prepare a request, in a thread for which no sequence waits."""
        prepared: Prepared | StageError
        try:
            if self._is_closing:
                raise EngineFailed("the engine is shutting down")
            is_wanted = stream.is_open and not self._preparing.get(request.params.cancel_key)
            prepared = self._runtime.prepare(request) if is_wanted else Prepared(request)
        except StageError as error:
            prepared = error
        except BaseException:  # a panic in Rust code too
            logger.exception("the runtime did not prepare request_id=%s", request.request_id)
            prepared = InternalError()
        self._post(lambda: self._prepared(stream, item, request, prepared))

    def _prepared(
        self, stream: OutputStream, item: int, request: EngineRequest, prepared: Prepared | StageError
    ) -> None:
        stream.num_preparing -= 1
        if self._preparing.pop(request.params.cancel_key, False):
            self._pending_cancels.add(request.params.cancel_key)  # it may have been forgotten meanwhile
        if isinstance(prepared, StageError):
            self._refuse(stream, item, request, prepared)
        else:
            self._admit(stream, item, prepared.request, prepared)

    def _admit(self, stream: OutputStream, item: int, request: EngineRequest, prepared: Prepared | None = None) -> None:
        try:
            self._start(stream, item, request, prepared)
        except StageError as error:
            self._refuse(stream, item, request, error)
        except BaseException:  # a panic in Rust code too
            logger.exception("the runtime failed on a new request request_id=%s", request.request_id)
            stream.fail(item, InternalError())

    def _refuse(self, stream: OutputStream, item: int, request: EngineRequest, error: StageError) -> None:
        if not stream.is_single:  # a single request's responder logs the refusal
            stage_error(error, request.request_id)
        stream.fail(item, error)
