"""The frontend's stream of deliveries from one model: what happens to all its streamed requests, in one call."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Callable
from typing import Any

import grpc.aio

from frontend import errors
from frontend.errors import APIError
from frontend.triton.failures import error_from_message, error_from_rpc
from frontend.triton.messages import infer_request, tensors_from_response
from model_repository import contract
from model_repository.deliveries import DeliveredChunks
from model_repository.generation import GenerationChunk
from model_repository.tensors import array

logger = logging.getLogger(__name__)

# Triton keeps two kilobytes of each response until a request ends: after so many deliveries there is a new stream.
MAX_DELIVERIES = 5000


class Mailbox:
    """The chunks of one completion that have come and were not read yet."""

    def __init__(self) -> None:
        self._chunks: deque[GenerationChunk] = deque()
        self._error: APIError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, chunk: GenerationChunk) -> None:
        """Add the next chunk."""
        self._chunks.append(chunk)
        self._wake()

    def fail(self, error: APIError) -> None:
        """Have the reader raise this error once it has read what came before; the first one counts."""
        self._error = self._error or error
        self._wake()

    async def get(self) -> GenerationChunk:
        """Return what has come since the last time, as one chunk where it is nothing but text.

        Raises:
            APIError: what `fail` was given.
        """
        while not self._chunks and self._error is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if not self._chunks:
            assert self._error is not None
            raise self._error
        chunk = self._chunks.popleft()
        if not self._chunks or not chunk.is_text:
            return chunk
        texts = [chunk.text]
        while self._chunks and self._chunks[0].is_text:
            texts.append(self._chunks.popleft().text)
        return GenerationChunk(text="".join(texts))

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class DeliveryReader:
    """One stream of deliveries, from its opening until it breaks or is closed. `run` reads it.

    The engine ends it too, when it has been of no use for a while.

    Args:
        stub: of Triton's gRPC service.
        slug: the model's.
        on_end: told of itself once nothing more comes.
    """

    def __init__(self, stub: Any, slug: str, on_end: Callable[[DeliveryReader], None]) -> None:
        self.slug = slug
        self.key = secrets.token_hex(16)  # who knows it can write to us: it is neither logged nor told
        inputs = {contract.OPEN_DELIVERIES.name: array(contract.OPEN_DELIVERIES, self.key)}
        message = infer_request(contract.stage_name(slug, contract.DELIVERIES), inputs)
        self._call = stub.ModelStreamInfer(iter((message,)))
        self._on_end = on_end
        self._error: APIError | None = None  # why nothing more comes
        self._num_read = 0
        self._numbers = itertools.count(1)
        self._mailboxes: dict[int, Mailbox] = {}
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_worn(self) -> bool:
        """Whether it should get no further requests: the engine ends it once it has no more sequences."""
        return self._num_read >= MAX_DELIVERIES

    async def opened(self) -> None:
        """Wait until the engine knows the key.

        Raises:
            APIError: it could not be opened.
        """
        await asyncio.shield(self._opened)

    def add(self, mailbox: Mailbox) -> int:
        """Return the number under which a completion's chunks go to this mailbox.

        Raises:
            APIError: the stream has ended.
        """
        if self._error is not None:
            raise self._error
        number = next(self._numbers)
        self._mailboxes[number] = mailbox
        return number

    def remove(self, number: int) -> None:
        """Forget a number: what still comes for it is not read."""
        self._mailboxes.pop(number, None)

    def close(self, error: APIError) -> None:
        """End the stream; whoever waits for something of it gets the error."""
        self._call.cancel()
        self._end(error)

    async def run(self) -> None:
        """Read until the stream ends, for whatever reason."""
        error: APIError = errors.EngineFailed("The stream ended before the completion did.")
        try:
            await self._read()
        except APIError as exc:
            error = exc
        except asyncio.CancelledError:  # of the call: it was closed, or the channel was
            error = errors.TritonUnreachable()
        except Exception:
            logger.exception("a delivery of %s could not be read", self.slug)
            error = errors.ServerError()
        self.close(error)

    def _end(self, error: APIError) -> None:
        if self._error is not None:
            return
        self._error = error
        self._on_end(self)
        if not self._opened.done():
            self._opened.set_exception(error)
            self._opened.exception()  # looked at: nobody may be waiting for it
        for mailbox in self._mailboxes.values():
            mailbox.fail(error)

    async def _read(self) -> None:
        """Read until the stream ends.

        Raises:
            APIError: what Triton or grpc said, or a delivery was lost.
        """
        while True:
            try:
                response = await self._call.read()
            except grpc.aio.AioRpcError as exc:
                raise error_from_rpc(exc) from exc
            if response is grpc.aio.EOF:
                return
            if response.error_message:
                raise error_from_message(response.error_message)
            delivered = DeliveredChunks.from_tensors(tensors_from_response(response.infer_response))
            if delivered.serial != self._num_read:
                raise errors.EngineFailed(f"delivery {self._num_read} was lost")
            self._num_read += 1
            if not self._opened.done():
                self._opened.set_result(None)
            self._dispatch(delivered)

    def _dispatch(self, delivered: DeliveredChunks) -> None:
        for number, item in delivered.items:
            mailbox = self._mailboxes.get(number)
            if mailbox is None:  # nobody reads it any more
                continue
            if isinstance(item, str):
                mailbox.fail(error_from_message(item))
            else:
                mailbox.put(item)
