"""The endpoints of chat completions and completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from msgspec.structs import replace

from frontend.errors import APIError, InvalidRequest
from frontend.handlers.bodies import LARGE_BYTES, work_on_body
from frontend.handlers.call import Call
from frontend.handlers.documents import with_documents
from frontend.handlers.fetching import fetched_images, may_fetch
from frontend.handlers.generation import Generation, admit
from frontend.handlers.keepalive import Keepalive
from frontend.handlers.large_answers import LARGE_ANSWERS, write
from frontend.handlers.stored_chats import keep_of
from frontend.handlers.tokenization import detokenized
from frontend.json_pieces import sliced
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import MAX_CHOICES, CompletionRequest
from frontend.protocol.prompts import Prompt
from frontend.request_context import (
    CLIENT_CLOSED,
    FACTS,
    SETTINGS,
    TRITON,
    Admitted,
    sender_of,
    unexpected,
)
from frontend.stream_record import server_timing
from frontend.translate import sse
from frontend.translate.chat_reply import ChatReply
from frontend.translate.completion_reply import CompletionReply
from frontend.translate.reply import Event, Reply
from frontend.translate.requests import chat_to_requests, completion_to_requests
from frontend.triton.chunk_queue import Announced, Resumed
from frontend.triton.models import ModelName
from model_repository.contract.output import GenerationChunk
from model_repository.contract.request import GenerationRequest
from model_repository.model_parameters import RequestDefaults


class EventStream(web.StreamResponse):
    """A stream whose head leaves in one packet with the first events."""

    _send_headers_immediately = False  # aiohttp has no public name for it, and its `Response` streams no body
    unwritten = b""  # events


_MAX_BODIES = 4  # bytes that one request may send to Triton, in bodies of the largest size


async def continue_chat(call: Call[ChatCompletionRequest]) -> web.StreamResponse:
    """POST /v1/chat/completions."""
    return await answer_chat(call, ChatReply(call.body, call.name, int(time.time()), keep_of(call)))


async def answer_chat(
    call: Call[ChatCompletionRequest], reply: Reply, max_prompt_tokens: int | None = None
) -> web.StreamResponse:
    """Generate the answer to a chat, in the form of the reply.

    Args:
        max_prompt_tokens: see ChatPrompt.
    """
    async with _completion(call, reply, max_prompt_tokens) as completion:
        return await completion.answer()


async def generated(call: Call[ChatCompletionRequest], reply: Reply, max_prompt_tokens: int | None = None) -> Event:
    """Return the answer to a chat without a stream, for more work in the same request.

    Args:
        max_prompt_tokens: see ChatPrompt.
    """
    async with _completion(call, reply, max_prompt_tokens) as completion:
        return await completion.collected()


@asynccontextmanager
async def _completion(
    call: Call[ChatCompletionRequest], reply: Reply, max_prompt_tokens: int | None
) -> AsyncIterator[Completion]:
    call = await with_documents(call)
    generations = await chat_generations(call, max_prompt_tokens)
    async with await admit(call, generations, len(generations)) as admitted:
        await fetch_images(call, admitted)
        yield Completion(call, admitted, reply)


async def chat_generations(
    call: Call[ChatCompletionRequest], max_prompt_tokens: int | None = None
) -> list[GenerationRequest]:
    """Return a generation request for each choice of a chat.

    Args:
        max_prompt_tokens: see ChatPrompt.

    Raises:
        APIError: a rule of chats is broken.
    """
    chat, request = call.body, call.request
    _refuse_too_many(call, 1, chat.n or 1)
    defaults, request_id = _defaults(call), request[FACTS].request_id
    return await work_on_body(
        request, chat_to_requests, chat, call.name, defaults, request_id, may_fetch(call.app), max_prompt_tokens
    )


async def num_prompt_tokens(call: Call[ChatCompletionRequest], max_prompt_tokens: int | None = None) -> int:
    """Return the number of tokens of a chat's prompt, as the tokenizer stage counts them.

    Args:
        max_prompt_tokens: see ChatPrompt.

    Raises:
        APIError: a rule of chats is broken; see also `ReplicaPool.tokenize`.
    """
    [generation, *_] = await chat_generations(await with_documents(call), max_prompt_tokens)
    triton, model_id, sender = call.app[TRITON], call.name.model_id, sender_of(call.request)
    async with triton.held(model_id, sender):
        answered = await triton.tokenize(model_id, generation.prompt, add_special_tokens=True, sender=sender)
    return len(answered.token_ids)


async def continue_text(call: Call[CompletionRequest]) -> web.StreamResponse:
    """POST /v1/completions."""
    completion, request, name = call.body, call.request, call.name
    _refuse_too_many(call, len(completion.prompt), completion.best_of or completion.n or 1)
    generations = completion_to_requests(completion, name, _defaults(call), request[FACTS].request_id)
    num_per_prompt = len(generations) // len(completion.prompt)
    async with await admit(call, generations, num_per_prompt) as admitted:
        num_chars = await _prompt_lengths(request, completion, name, admitted)
        if completion.stream and len(completion.prompt) > 1:
            # A prompt can be refused with a status only before the stream begins.
            await admitted.hold.ready()
            numbered = list(enumerate(admitted.generations))
            await call.app[TRITON].check(name.model_id, numbered[::num_per_prompt])
        return await Completion(call, admitted, CompletionReply(completion, name, int(time.time()), num_chars)).answer()


class Completion(Generation[Reply]):
    """A request with an answer that may be streamed."""

    async def answer(self) -> web.StreamResponse:
        """Generate, and return the answer in the form that the request asks for."""
        return await (self._stream() if self._record.is_stream else self.whole())

    async def _stream(self) -> web.StreamResponse:
        """Answer event by event.

        Raises:
            Exception: an error before the first byte.
        """
        request, encoder = self._request, sse.EventEncoder(self._reply)
        response = EventStream(headers={**sse.HEADERS, **self._headers})
        hold, interval_s = self._admitted.hold, self._app[SETTINGS].stream_keepalive_s
        async with Keepalive(request, response, interval_s, hold) as keepalive:
            try:
                await self._within_time(self._write_events(response, encoder, keepalive))
                await response.write_eof(response.unwritten + encoder.end)
            except ConnectionResetError:
                self._facts.error_code = CLIENT_CLOSED
            except Exception as exc:
                await keepalive.settled()
                if not response.prepared:
                    raise
                error = exc if isinstance(exc, APIError) else unexpected(exc, self._facts)
                self._call.places.blame(error)
                self._facts.fail(error)
                try:
                    await response.write_eof(response.unwritten + encoder.failure(error))
                except ConnectionResetError:
                    self._facts.error_code = CLIENT_CLOSED
        return response

    async def _write_events(self, response: EventStream, encoder: sse.EventEncoder, keepalive: Keepalive) -> None:
        """Write the events of all chunks but the last one. Its events stay unwritten: each write is a packet."""
        request, record, memory = self._request, self._record, self._app[LARGE_ANSWERS]
        num_running, has_begun, unwritten = len(record.completions), False, b""
        async with self._chunks() as chunks:
            async for index, chunk in chunks:
                if isinstance(chunk, Announced | Resumed):
                    await keepalive.add_headers(self._new_headers(chunk))
                    continue
                assert isinstance(chunk, GenerationChunk), "a vector has no stream"
                record.add(index, chunk)
                if self._reply.has_whole:
                    memory.count(request, self._call.name, chunk)
                if not has_begun:
                    has_begun = True
                    if waited_s := self._admitted.hold.waited_s:
                        await keepalive.add_headers({"Server-Timing": server_timing(None, load_s=waited_s)})
                    await keepalive.prepare()
                if chunk.finish_reason is not None:
                    await self._reply.finish(index, chunk)
                events = encoder.encode(index, chunk)
                if isinstance(events, bytes):
                    unwritten += events
                else:
                    slices = sliced(events, LARGE_BYTES)
                    unwritten += next(slices)
                    if len(unwritten) >= LARGE_BYTES:
                        async for made in memory.in_turn(request, slices):
                            await write(response, unwritten)
                            unwritten = made
                num_running -= chunk.finish_reason is not None
                if not num_running:
                    response.unwritten = unwritten
                elif unwritten:
                    await write(response, unwritten)
                    unwritten = b""


async def fetch_images(call: Call[ChatCompletionRequest], admitted: Admitted) -> None:
    """Fetch the images that a chat names by URL."""
    images = admitted.generations[0].images
    if all(images):
        return
    images = await fetched_images(call.request, call.body, images)
    _refuse_too_many(call, 1, call.body.n or 1)
    admitted.generations = [replace(each, images=images) for each in admitted.generations]


def _defaults(call: Call[Any]) -> RequestDefaults:
    return call.name.model.parameters.request_defaults(call.app[SETTINGS].request_defaults, call.name.preset)


def _refuse_too_many(call: Call[Any], num_prompts: int, num_per_prompt: int) -> None:
    """Refuse a request with too many completions, or with too many bytes for Triton."""
    num_choices = num_prompts * num_per_prompt
    if num_choices > MAX_CHOICES:
        rule = f"{num_choices} completions: one request may have {MAX_CHOICES}"
        param = "prompt" if num_prompts > 1 else "n"
        raise InvalidRequest(f"{param}: {rule}", param=param)
    num_bytes = call.request[FACTS].num_body_bytes * num_per_prompt  # each completion sends the prompt
    limit = _MAX_BODIES * call.app[SETTINGS].max_body_bytes
    if num_bytes > limit:
        raise InvalidRequest(f"n: {num_bytes} bytes for all completions of a prompt exceed {limit}", param="n")


async def _prompt_lengths(
    request: web.Request, completion: CompletionRequest, name: ModelName, admitted: Admitted
) -> Sequence[int]:
    """Return the number of characters of each prompt if offsets of log probabilities begin behind the prompt."""
    if completion.logprobs is None or completion.echo:
        return ()
    if completion.truncate_prompt_tokens is not None:  # only the tokenizer stage knows the rest of the prompt
        return [0] * len(completion.prompt)

    if not all(isinstance(prompt, str) for prompt in completion.prompt):
        await admitted.hold.ready()

    async def length(prompt: Prompt) -> int:
        if isinstance(prompt, str):
            return len(prompt)
        return len(await detokenized(request, name.model_id, prompt, has_special_tokens=False))

    return await asyncio.gather(*map(length, completion.prompt))
