"""The chunks of one completion, between the call that receives them and their reader."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from frontend.errors import APIError, QueueFull, ReaderTooSlow
from model_repository.contract.output import Announcement, Chunk, GenerationChunk, Usage, VectorChunk

# A reader with more unread tokens is disconnected: they take some megabytes. Each log probability counts as a token.
MAX_UNREAD = 16_384
MAX_UNREAD_BYTES = 2**27  # of one sender; beyond them, readers that are behind are disconnected
_MIN_UNREAD_BYTES = 65_536  # of a reader that is behind
_CHUNK_BYTES = 256  # a chunk without its contents
TOKEN_BYTES = 4  # of `packed_token_ids`
ID_BYTES = 36  # a token id in a list
LOGPROB_BYTES = 24  # a log probability as it comes, about


class UnreadBytes:
    """The memory of all unread chunks from a Triton, by sender."""

    def __init__(self) -> None:
        self._by_sender: dict[str, int] = {}
        self._num_bytes = 0

    def add(self, sender: str, num_bytes: int) -> None:
        """Count bytes; a negative number when they are read or dropped."""
        self._num_bytes += num_bytes
        if left := self._by_sender.get(sender, 0) + num_bytes:
            self._by_sender[sender] = left
        else:
            self._by_sender.pop(sender, None)

    def is_full(self, sender: str) -> bool:
        """Whether a sender has too many, or all senders together."""
        return self._by_sender.get(sender, 0) > MAX_UNREAD_BYTES or self._num_bytes > 2 * MAX_UNREAD_BYTES


class Announced(GenerationChunk, frozen=True, kw_only=True):
    """In place of a first chunk without text: the engine's announcement of the request."""

    ignored_keywords: tuple[str, ...]  # places in schemas

    @property
    def is_text(self) -> bool:
        return False


class Resumed(GenerationChunk, frozen=True, kw_only=True):
    """In place of a chunk: a part of the server has died, and the completion goes on elsewhere, or later."""

    @property
    def is_text(self) -> bool:
        return False


class ChunkQueue:
    """The unread chunks of one completion.

    Args:
        cancel_key: of the request.
        is_stream: otherwise its reader gets one chunk, the whole completion.
        sender: of the request.
        unread: counts the memory of all queues.
        close: called when its reader leaves, or is too slow; with True, it has the engine cancel the request.
        on_end: called once the engine has no more work for the request, with what it used; None: it was cancelled.
    """

    def __init__(
        self,
        cancel_key: str,
        *,
        is_stream: bool = True,
        sender: str = "",
        unread: UnreadBytes | None = None,
        close: Callable[[bool], None],
        on_end: Callable[[Usage | None], None],
    ) -> None:
        self.cancel_key = cancel_key
        self.is_finished = False  # the last chunk has come
        self.is_waiting = True  # neither an error nor the engine's first message about the request has come
        self.close = close
        self._on_end = on_end
        self._num_unread = 0
        self._chunks: deque[Chunk] = deque()
        self._is_stream = is_stream
        self._sender = sender
        self._unread = unread or UnreadBytes()
        self._num_bytes = 0
        self._unsaid_ids = b""  # of tokens before the next chunk
        self._parts: list[GenerationChunk] = []  # of a whole completion, until its end
        self._error: APIError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, chunk: Chunk | Announcement) -> None:
        """Add the next chunk. Chunks after the last one, or after an error, are dropped."""
        if not isinstance(chunk, GenerationChunk | VectorChunk):
            chunk = Announced(text="", ignored_keywords=chunk["ignored_keywords"])
        if self._unsaid_ids and isinstance(chunk, GenerationChunk):
            packed = self._unsaid_ids + chunk.packed_token_ids
            chunk = replace(chunk, packed_token_ids=packed, num_tokens=len(packed) // TOKEN_BYTES)
            self._unsaid_ids = b""
        if chunk.is_text and not chunk.text:  # tokens without bytes
            assert isinstance(chunk, GenerationChunk), "a vector is no text"
            self._unsaid_ids = chunk.packed_token_ids
        elif self._error is None and not self.is_finished:
            num_tokens, num_bytes = _weight(chunk)
            self._count(num_bytes)
            if self._num_bytes > _MIN_UNREAD_BYTES and self._unread.is_full(self._sender):
                self._overflow(ReaderTooSlow() if self._is_stream else QueueFull("The answer is too large."))
                return
            if not self._is_stream and type(chunk) is GenerationChunk:
                self._parts.append(chunk)
                if chunk.finish_reason is None:
                    return
                chunk, self._parts = joined(self._parts), []
                num_tokens, _ = _weight(chunk)
            self._num_unread += num_tokens
            if self._num_unread > MAX_UNREAD and self._chunks:
                self._overflow(ReaderTooSlow())
                return
            self._chunks.append(chunk)
            self._wake()
            if chunk.finish_reason is not None:
                self.is_finished = True
                self._on_end(chunk.usage)

    def fail(self, error: APIError) -> None:
        """Have the reader raise this error after the unread chunks. Only the first error counts."""
        if self._error is None:
            self._error = error
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

    async def get(self) -> Chunk:
        """Return the next chunk, joined with the following ones as long as they have only text.

        Raises:
            APIError: the error that `fail` was given.
        """
        await self.ready()
        chunk = self._chunks.popleft()
        num_tokens, num_bytes = _weight(chunk)
        self._num_unread -= num_tokens
        if not self._chunks or not chunk.is_text:
            self._count(-num_bytes if self._chunks else -self._num_bytes)
            return chunk
        texts, ids, num_tokens = [chunk.text], [chunk.packed_token_ids], chunk.num_tokens
        while self._chunks and (chunk := self._chunks[0]).is_text:
            self._chunks.popleft()
            texts.append(chunk.text)
            ids.append(chunk.packed_token_ids)
            num_tokens += chunk.num_tokens
        self._num_unread -= len(texts) - 1
        text = "".join(texts)
        self._count(-len(texts) * _CHUNK_BYTES - len(text))
        return GenerationChunk(text=text, num_tokens=num_tokens, packed_token_ids=b"".join(ids))

    def drop(self) -> None:
        """Free the memory of a queue without a reader."""
        self._chunks.clear()
        self._parts.clear()
        self._count(-self._num_bytes)

    def _overflow(self, error: APIError) -> None:
        """Drop all chunks: they are useless without the rest. The reader may be stuck, so this cancels the request."""
        self.drop()
        self.fail(error)
        self.close(True)
        self._on_end(None)

    def _count(self, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._unread.add(self._sender, num_bytes)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _weight(chunk: Chunk) -> tuple[int, int]:
    """Return the number of tokens that a chunk counts as, and the memory that it takes."""
    if chunk.is_text:
        return 1, _CHUNK_BYTES + len(chunk.text)
    num_bytes = _CHUNK_BYTES + size_bytes(chunk)
    if isinstance(chunk, VectorChunk):
        return 1, num_bytes
    return 1 + len(chunk.token_ids) + sum(map(len, chunk.logprobs)) // LOGPROB_BYTES, num_bytes


def size_bytes(chunk: Chunk) -> int:
    """Return the memory of a chunk's contents."""
    if isinstance(chunk, VectorChunk):
        return len(chunk.embedding)
    ids = len(chunk.token_ids) + len(chunk.prompt_token_ids)
    packed = sum(map(len, chunk.logprobs)) + sum(map(len, chunk.prompt_logprobs))
    return len(chunk.text) + ids * ID_BYTES + packed


def joined(parts: Sequence[GenerationChunk]) -> GenerationChunk:
    """Return a completion as one chunk."""
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[-1],
        text="".join([each.text for each in parts]),
        token_ids=tuple(itertools.chain.from_iterable(each.token_ids for each in parts)),
        logprobs=tuple(itertools.chain.from_iterable(each.logprobs for each in parts)),
        num_prompt_tokens=parts[0].num_prompt_tokens,
        prompt_token_ids=parts[0].prompt_token_ids,
        prompt_logprobs=parts[0].prompt_logprobs,
        spans=_joined_spans(parts),
    )


def _joined_spans(parts: Sequence[GenerationChunk]) -> tuple[int, ...]:
    """Return the characters of thinking and of answer in a completion, in turns; empty: all is answer."""
    sizes = [0]
    for part in parts:
        for index, size in enumerate(part.spans or ((0, len(part.text)) if part.text else ())):
            if index % 2 != len(sizes) % 2:
                sizes[-1] += size
            elif index or size:
                sizes.append(size)
    return tuple(sizes) if any(part.spans for part in parts) else ()
