"""The chunks of one completion, between the call that brings them and their reader."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from frontend.errors import APIError, ReaderTooSlow
from model_repository.contract.output import GenerationChunk

# A reader that is further behind is cut: some megabytes of memory. A token counts as one, and so does each log
# probability that comes with it.
MAX_UNREAD = 16_384


class ChunkQueue:
    """The chunks of one completion that have come and were not read yet.

    Args:
        on_close: called when its reader leaves.
        on_overflow: called when more has come than is kept for a reader.
        request_id: the name of the request in logs.
    """

    def __init__(
        self, on_close: Callable[[], None], on_overflow: Callable[[], None] = lambda: None, request_id: str = ""
    ) -> None:
        self.request_id = request_id
        self.is_finished = False  # its last chunk has come
        self.is_waiting = True  # until the engine says that it has the request, or an error comes
        self.is_engine_lost = False
        self.close = on_close
        self._on_overflow = on_overflow
        self._num_unread = 0
        self._chunks: deque[GenerationChunk] = deque()
        self._error: APIError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, chunk: GenerationChunk) -> None:
        """Add the next chunk."""
        if self._error is None and (chunk.text or not chunk.is_text):  # tokens without bytes say nothing
            self._num_unread += 1 if chunk.is_text else _weight(chunk)
            if self._num_unread > MAX_UNREAD and self._chunks:
                self._overflow()
                return
            self._chunks.append(chunk)
            self.is_finished = chunk.finish_reason is not None
            self._wake()

    def fail(self, error: APIError, *, is_engine_lost: bool = False) -> None:
        """Have the reader raise this error after the chunks that came before it; only the first error counts."""
        if self._error is None:
            self._error, self.is_engine_lost = error, is_engine_lost
            self._wake()

    async def ready(self) -> None:
        """Wait until there is a chunk.

        Raises:
            APIError: the error that `fail` was given.
        """
        while not self._chunks:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    async def get(self) -> GenerationChunk:
        """Return the next chunk, joined with the following ones as long as they are nothing but text.

        Raises:
            APIError: the error that `fail` was given.
        """
        await self.ready()
        chunk = self._chunks.popleft()
        self._num_unread -= 1 if chunk.is_text else _weight(chunk)
        if not self._chunks or not chunk.is_text:
            return chunk
        texts = [chunk.text]
        while self._chunks and self._chunks[0].is_text:
            texts.append(self._chunks.popleft().text)
        self._num_unread -= len(texts) - 1
        return GenerationChunk(text="".join(texts))

    def _overflow(self) -> None:
        """Keep nothing more: the chunks are of no use without the rest."""
        self._chunks.clear()
        self.fail(ReaderTooSlow())
        self._on_overflow()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _weight(chunk: GenerationChunk) -> int:
    """Return the weight of a chunk among the unread ones."""
    return 1 + len(chunk.token_ids) + sum(1 + len(token.top) for token in chunk.logprobs)
