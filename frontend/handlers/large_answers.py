"""Large answers: their memory, reserved before the model runs, and their JSON, made in turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from aiohttp import web

from frontend.errors import InvalidRequest
from frontend.handlers.bodies import LARGE_BODIES, LARGE_BYTES
from frontend.handlers.shared_memory import SharedMemory
from frontend.json_pieces import json_pieces, sliced
from frontend.request_context import CLIENT_CLOSED, FACTS, lock_of_sender, sender_of
from frontend.translate.reply import Event
from frontend.triton.chunk_queue import ID_BYTES, LOGPROB_BYTES, size_bytes
from frontend.triton.models import ModelName
from model_repository.contract.output import Chunk, VectorChunk
from model_repository.contract.request import GenerationRequest
from model_repository.model_facts import Task

MAX_ANSWER_BYTES = 2**27  # of one answer, and of all answers of a sender
_TEXT_BYTES = 8  # a token's text
_STRING_BYTES = 64  # a token's text in a list
_MEAN_TOKENS = 512  # expected of a completion without a limit
_VECTOR_BYTES = 4096  # expected of a model's first vector
_SCORES_BYTES = 256  # the same with scores
_REQUEST_BYTES = 2048  # a prompt's request, from its admission to its end


class LargeAnswers(SharedMemory):
    """Bounds the memory of answers above LARGE_BYTES until they are written, and makes their JSON in turns."""

    def __init__(self) -> None:
        super().__init__(2 * MAX_ANSWER_BYTES, MAX_ANSWER_BYTES, "answers that are not read yet")
        self._vector_bytes: dict[str, int] = {}  # model to the size of its last vector
        self._turn = asyncio.Lock()

    async def expect(self, request: web.Request, name: ModelName, generations: Sequence[GenerationRequest]) -> None:
        """Reserve the memory of completions without a stream, until the end of the request.

        Raises:
            Overloaded: the memory stays full.
        """
        if not generations[0].params.is_stream:
            await self._reserve_for(request, _expected_bytes(request, name, generations))

    async def expect_vectors(self, request: web.Request, name: ModelName, num_prompts: int) -> None:
        """Reserve the memory of vectors, or of scores, and of the requests for them.

        Raises:
            Overloaded: the memory stays full.
        """
        expected = _VECTOR_BYTES if name.model.parameters.task is Task.EMBED else _SCORES_BYTES
        size = _REQUEST_BYTES + self._vector_bytes.get(name.model.id, expected)
        await self._reserve_for(request, num_prompts * size)

    async def expect_tokens(self, request: web.Request, *, has_strings: bool) -> None:
        """Reserve the memory of a text's tokens.

        Raises:
            Overloaded: the memory stays full.
        """
        size = ID_BYTES + (_STRING_BYTES if has_strings else 0)
        await self._reserve_for(request, request[FACTS].num_body_bytes * size)

    def count(self, request: web.Request, name: ModelName, chunk: Chunk) -> None:
        """Count a completion of an answer, which may be larger than expected.

        Raises:
            InvalidRequest: the answer is too large.
            Overloaded: the memory is full.
        """
        facts = request[FACTS]
        if isinstance(chunk, VectorChunk):
            self._vector_bytes[name.model.id] = len(chunk.embedding)
        facts.num_kept_bytes += size_bytes(chunk)
        if facts.num_kept_bytes > MAX_ANSWER_BYTES:
            raise InvalidRequest(f"The answer has more than {MAX_ANSWER_BYTES} bytes: use a stream, or ask for less")
        num_more = facts.num_kept_bytes - facts.num_answer_bytes
        if num_more > 0 and facts.num_kept_bytes > LARGE_BYTES:
            self.grow(sender_of(request), num_more)
            facts.num_answer_bytes += num_more

    async def answer(self, request: web.Request, body: Event, headers: Mapping[str, str]) -> web.StreamResponse:
        """Return an answer. A large one is written while it is made, as a part of its request."""
        slices = sliced(json_pieces(body), LARGE_BYTES)
        first = next(slices)
        if len(first) < LARGE_BYTES:
            return web.Response(body=first, headers=headers, content_type="application/json")
        response = web.StreamResponse(headers=headers)
        response.content_type = "application/json"
        try:
            await response.prepare(request)
            await write(response, first)
            async for made in self.in_turn(request, slices):
                await write(response, made)
            await response.write_eof()
        except ConnectionResetError:
            request[FACTS].error_code = CLIENT_CLOSED
        return response

    async def in_turn(self, request: web.Request, slices: Iterator[bytes]) -> AsyncIterator[bytes]:
        """Yield slices of JSON. All answers together make one in each round of the event loop; senders take turns."""
        while True:
            async with lock_of_sender(request), self._turn:
                await asyncio.sleep(0)
                made = next(slices, None)
            if made is None:
                return
            yield made

    def _fits(self, sender: str, num_bytes: int) -> bool:
        return num_bytes <= self._num_free_bytes and self._held[sender] + num_bytes <= self._kept_bytes

    async def _reserve_for(self, request: web.Request, num_bytes: int) -> None:
        if num_bytes > LARGE_BYTES:
            num_bytes = min(num_bytes, MAX_ANSWER_BYTES)
            await self.reserve(sender_of(request), num_bytes)
            request[FACTS].num_answer_bytes = num_bytes


async def write(response: web.StreamResponse, made: bytes) -> None:
    """Write bytes of any number."""
    for start in range(0, len(made), LARGE_BYTES):  # aiohttp would copy the whole
        await response.write(made[start : start + LARGE_BYTES])


LARGE_ANSWERS: web.AppKey[LargeAnswers] = web.AppKey("large_answers")


def release_memory(request: web.Request) -> None:
    """Free the memory of a request's body and answer."""
    facts, sender = request[FACTS], sender_of(request)
    if facts.num_reserved_bytes:
        request.app[LARGE_BODIES].release(sender, facts.num_reserved_bytes)
    if facts.num_answer_bytes:
        request.app[LARGE_ANSWERS].release(sender, facts.num_answer_bytes)


def _expected_bytes(request: web.Request, name: ModelName, generations: Sequence[GenerationRequest]) -> int:
    """Return the size of completions, as they are kept, of the most tokens that their limits allow."""
    params, window = generations[0].params, name.model.parameters.context_window
    num_tokens = params.max_tokens if params.max_tokens < window else min(window, _MEAN_TOKENS)
    num_prompt_tokens = min(request[FACTS].num_body_bytes, window)
    num_bytes = num_tokens * _TEXT_BYTES
    if params.has_token_ids or params.has_logprobs:
        num_bytes += num_tokens * ID_BYTES
    if params.has_logprobs:
        num_echoed = num_prompt_tokens if params.is_echo else 0
        num_bytes += (num_tokens + num_echoed) * (1 + params.num_top_logprobs) * LOGPROB_BYTES
    num_scored = 0 if params.num_prompt_logprobs is None else num_prompt_tokens * (1 + params.num_prompt_logprobs)
    return len(generations) * num_bytes + num_scored * LOGPROB_BYTES
