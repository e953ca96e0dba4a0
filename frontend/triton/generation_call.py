"""One generation at Triton, which can be ended with an error from outside: answered by its call, or by deliveries."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

import grpc.aio

from frontend import errors
from frontend.errors import APIError
from frontend.triton.deliveries import DeliveryReader, Mailbox
from frontend.triton.failures import error_from_message, error_from_rpc
from frontend.triton.messages import Tensors, tensors_from_response
from model_repository.chunk_tensors import tensors_to_chunk
from model_repository.generation import GenerationChunk

_END_TIMEOUT_S = 5.0


class Generation(Protocol):
    """A completion while it is generated."""

    has_begun: bool  # the tokenizer has done its part
    is_engine_lost: bool

    def abort(self, error: APIError, *, is_engine_lost: bool) -> None:
        """Make the reader of the chunks raise this error."""

    async def read(self) -> GenerationChunk:
        """Return the next chunk.

        Raises:
            APIError: what Triton, grpc or `abort` said.
        """

    async def end(self) -> None:
        """Let go of it after its last chunk."""

    def cancel(self) -> None:
        """Let go of it before."""


class StreamCall:
    """One ModelStreamInfer call."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.has_begun = False
        self.is_engine_lost = False
        self._error: APIError | None = None

    def abort(self, error: APIError, *, is_engine_lost: bool) -> None:
        """Make the reader of the responses raise this error."""
        self._error = error
        self.is_engine_lost = is_engine_lost
        self._call.cancel()

    async def read_tensors(self) -> Tensors | None:
        """Return the outputs of the next response, None at the end.

        Raises:
            APIError: what Triton, grpc or `abort` said.
        """
        try:
            response = await self._call.read()
        except grpc.aio.AioRpcError as exc:
            raise error_from_rpc(exc) from exc
        except asyncio.CancelledError:
            # grpc says that `abort` cancelled the call in the same way as asyncio says that our task is cancelled.
            task = asyncio.current_task()
            if self._error is None or (task is not None and task.cancelling()):
                raise
            raise self._error from None
        if response is grpc.aio.EOF:
            return None
        if response.error_message:
            raise error_from_message(response.error_message)
        self.has_begun = True
        return tensors_from_response(response.infer_response)

    async def read(self) -> GenerationChunk:
        """Return the next response as a chunk."""
        tensors = await self.read_tensors()
        if tensors is None:
            raise errors.EngineFailed("The stream ended before the completion did.")
        return tensors_to_chunk(tensors)

    async def end(self) -> None:
        """See the call to its end, which follows the last chunk at once, instead of cancelling what is done."""
        with contextlib.suppress(APIError, TimeoutError):
            await asyncio.wait_for(self.read_tensors(), _END_TIMEOUT_S)
        self._call.cancel()

    def cancel(self) -> None:
        """Cancel the call."""
        self._call.cancel()


class DeliveredGeneration:
    """A request whose chunks come by deliveries; its own call ends without an answer once the engine has taken it.

    Args:
        call: its own.
        reader: the stream of deliveries.
        number: the request's number there.
        mailbox: where its chunks come.
    """

    def __init__(self, call: StreamCall, reader: DeliveryReader, number: int, mailbox: Mailbox) -> None:
        self.is_engine_lost = False
        self.has_begun = False
        self._call = call
        self._reader = reader
        self._number = number
        self._mailbox = mailbox

    def abort(self, error: APIError, *, is_engine_lost: bool) -> None:
        """Make the reader of the chunks raise this error."""
        self.is_engine_lost = is_engine_lost
        self._call.abort(error, is_engine_lost=is_engine_lost)
        self._mailbox.fail(error)

    async def read(self) -> GenerationChunk:
        """Return the next chunk.

        Raises:
            DeliveriesNotOpen: before the first one; the reader is closed.
            APIError: what Triton, grpc or `abort` said, to this request or to all of the reader's.
        """
        if not self.has_begun:
            await self._see_it_taken()
        return await self._mailbox.get()

    async def _see_it_taken(self) -> None:
        try:
            while await self._call.read_tensors() is not None:
                pass
        except errors.DeliveriesNotOpen:
            # The engine is not the one that opened the stream: the others that read it wait in vain.
            self._reader.close(errors.EngineFailed())
            raise
        self.has_begun = True

    async def end(self) -> None:
        """Forget the number."""
        self._reader.remove(self._number)

    def cancel(self) -> None:
        """Forget the number, and cancel the call if it is still open."""
        self._reader.remove(self._number)
        self._call.cancel()
