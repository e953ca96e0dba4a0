"""The endpoints of chat completions and completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from aiohttp import web
from msgspec.structs import replace

from frontend.errors import APIError, GenerationTimeout, InvalidRequest, UnsupportedValue
from frontend.fan_out import Stream, merged
from frontend.handlers.call import Call
from frontend.handlers.image_urls import fetched_images, may_fetch
from frontend.handlers.keepalive import Keepalive
from frontend.handlers.tokenization import detokenized
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import MAX_CHOICES, CompletionRequest, Prompt
from frontend.request_context import (
    CLIENT_CLOSED,
    FACTS,
    LIMITS,
    SETTINGS,
    TRITON,
    Admitted,
    json_response,
    sender_of,
    unexpected,
)
from frontend.stream_record import StreamRecord, server_timing
from frontend.telemetry.observer import OBSERVER
from frontend.translate import sse
from frontend.translate.chat_reply import ChatReply
from frontend.translate.completion_reply import CompletionReply
from frontend.translate.reply import Reply
from frontend.translate.requests import chat_to_requests, completion_to_requests
from frontend.triton.models import ModelName
from model_repository.contract.output import GenerationChunk
from model_repository.contract.request import GenerationRequest
from model_repository.model_parameters import RequestDefaults, Task


class EventStream(web.StreamResponse):
    """A stream whose head leaves in one packet with the first events."""

    _send_headers_immediately = False  # aiohttp's own, see its `Response`


_MAX_BODIES = 4  # bytes that one request may send to Triton, in bodies of the largest size


async def continue_chat(call: Call[ChatCompletionRequest]) -> web.StreamResponse:
    """POST /v1/chat/completions."""
    return await answer_chat(call, ChatReply(call.body, call.name, int(time.time())))


async def answer_chat(call: Call[ChatCompletionRequest], reply: Reply) -> web.StreamResponse:
    """Generate the answer to a chat, in the form of the reply."""
    generations = chat_generations(call)
    async with _admitted(call, generations, len(generations)) as admitted:
        admitted = await _with_images(call.request, call.body, admitted)
        return await Completion(call, admitted, reply).answer()


def chat_generations(call: Call[ChatCompletionRequest]) -> list[GenerationRequest]:
    """Return a generation request for each choice of a chat.

    Raises:
        APIError: a rule of chats is broken.
    """
    chat, request = call.body, call.request
    _refuse_too_many(request, 1, chat.n or 1)
    return chat_to_requests(chat, call.name, _defaults(call), request[FACTS].request_id, may_fetch(request))


async def num_prompt_tokens(call: Call[ChatCompletionRequest]) -> int:
    """Return the number of tokens of a chat's prompt, as the tokenizer stage counts them.

    Raises:
        APIError: a rule of chats is broken; see also `ReplicaPool.tokenize`.
    """
    [generation, *_] = chat_generations(call)
    answered = await call.request.app[TRITON].tokenize(
        call.name.model_id, generation.prompt, add_special_tokens=True, sender=sender_of(call.request)
    )
    return len(answered.token_ids)


async def continue_text(call: Call[CompletionRequest]) -> web.StreamResponse:
    """POST /v1/completions."""
    completion, request, name = call.body, call.request, call.name
    _refuse_too_many(request, len(completion.prompt), completion.best_of or completion.n or 1)
    generations = completion_to_requests(completion, name, _defaults(call), request[FACTS].request_id)
    num_per_prompt = len(generations) // len(completion.prompt)
    async with _admitted(call, generations, num_per_prompt) as admitted:
        num_chars = await _prompt_lengths(request, completion, name)
        if completion.stream and len(completion.prompt) > 1:
            # A prompt can be refused with a status only before the stream begins.
            await request.app[TRITON].check(name.model_id, admitted.generations[::num_per_prompt])
        return await Completion(call, admitted, CompletionReply(completion, name, int(time.time()), num_chars)).answer()


class Completion:
    """A request that generates: its completions, its reply, and its record in figures."""

    def __init__(self, call: Call[Any], admitted: Admitted, reply: Reply) -> None:
        self._request = call.request
        self._headers = call.headers
        self._admitted = admitted
        self._reply = reply
        self._facts = call.request[FACTS]
        self._record = StreamRecord(admitted.generations, reply.num_per_prompt)
        self._facts.id, self._facts.stream = reply.id, self._record

    async def answer(self) -> web.StreamResponse:
        """Generate, and return the answer in the form that the request asks for."""
        chunks = merged([self._admitted.running(*each) for each in enumerate(self._admitted.generations)])
        return await (self._stream(chunks) if self._record.is_stream else self._whole(chunks))

    async def _whole(self, stream: Stream) -> web.StreamResponse:
        """Answer with the only chunk of each completion, in the order of the request."""
        collected: dict[int, GenerationChunk] = {}
        async with self._within_time(), stream as chunks:
            async for index, chunk in chunks:
                self._record.add(index, chunk)
                collected[index] = chunk
        num_completions = len(self._record.completions)
        assert self._record.num_finished == num_completions, "a generation ends with a finish reason or an error"
        timing = server_timing(self._record.slowest, time.monotonic() - self._facts.started_at)
        body = self._reply.whole([collected[index] for index in range(num_completions)])
        return json_response(body, headers={**self._headers, "Server-Timing": timing})

    async def _stream(self, stream: Stream) -> web.StreamResponse:
        """Write the events of a stream. Those of the last chunk and the end are one write: each write is a packet.

        Raises:
            Exception: an error before the first byte.
        """
        request, record = self._request, self._record
        encoder, unwritten = sse.EventEncoder(self._reply), b""
        response = EventStream(headers={**sse.HEADERS, **self._headers})
        num_running, has_begun = len(record.completions), False
        async with Keepalive(request, response, request.app[SETTINGS].stream_keepalive_s) as keepalive:
            try:
                async with self._within_time(), stream as chunks:
                    async for index, chunk in chunks:
                        record.add(index, chunk)
                        if not has_begun:
                            has_begun = True
                            await keepalive.prepare()
                            unwritten = encoder.opening(chunk)
                        unwritten += encoder.encode(index, chunk)
                        num_running -= chunk.finish_reason is not None
                        if unwritten and num_running:
                            events, unwritten = unwritten, b""
                            await response.write(events)
                await response.write_eof(unwritten + encoder.end)
            except ConnectionResetError:
                self._facts.error_code = CLIENT_CLOSED
            except Exception as exc:
                await keepalive.settled()
                if not response.prepared:
                    raise
                error = exc if isinstance(exc, APIError) else unexpected(exc, self._facts)
                self._facts.fail(error)
                try:
                    await response.write_eof(unwritten + encoder.failure(error))
                except ConnectionResetError:
                    self._facts.error_code = CLIENT_CLOSED
        return response

    @asynccontextmanager
    async def _within_time(self) -> AsyncIterator[None]:
        """Stop a block at the request's deadline, if there is one.

        Raises:
            GenerationTimeout: the request took longer than `request_timeout_s`.
        """
        limit_s = self._request.app[SETTINGS].request_timeout_s
        passed_s = time.monotonic() - self._facts.started_at
        try:
            async with asyncio.timeout(max(limit_s - passed_s, 0) if limit_s else None) as limit:
                yield
        except TimeoutError as exc:
            if not limit.expired():
                raise
            raise GenerationTimeout(f"The answer took longer than {limit_s:g} seconds") from exc


@asynccontextmanager
async def _admitted(
    call: Call[Any], generations: Sequence[GenerationRequest], num_per_prompt: int
) -> AsyncIterator[Admitted]:
    """Count a request as in flight, also while it waits, and apply the limits of its key and model.

    Raises:
        APIError: the model generates nothing, is full or not ready, or the key has reached a limit.
    """
    request, model_id, task = call.request, call.name.model_id, call.name.model.parameters.task
    if task is not Task.GENERATE:
        rule = f"{call.name.requested} does not generate: its task is {task}"
        raise UnsupportedValue(f"model: {rule}", param="model")
    triton, limits = request.app[TRITON], request.app.get(LIMITS)
    triton.require_available(model_id)
    with request.app[OBSERVER].in_flight(model_id):
        if limits is None:
            yield Admitted(
                generations,
                lambda index, generation: aclosing(triton.generate(model_id, generation, index=index)),
            )
            return
        async with limits.generating(request, call.body, call.name, generations, num_per_prompt) as admitted:
            yield admitted


async def _with_images(request: web.Request, chat: ChatCompletionRequest, admitted: Admitted) -> Admitted:
    """Fetch the images that a chat names by URL."""
    images = admitted.generations[0].images
    if all(images):
        return admitted
    images = await fetched_images(request, chat, images)
    _refuse_too_many(request, 1, chat.n or 1)
    return admitted._replace(generations=[replace(each, images=images) for each in admitted.generations])


def _defaults(call: Call[Any]) -> RequestDefaults:
    return call.name.model.parameters.request_defaults(call.request.app[SETTINGS].request_defaults())


def _refuse_too_many(request: web.Request, num_prompts: int, num_per_prompt: int) -> None:
    """Refuse a request with too many completions, or with too many bytes for Triton."""
    settings = request.app[SETTINGS]
    num_choices = num_prompts * num_per_prompt
    if num_choices > MAX_CHOICES:
        rule = f"{num_choices} completions: one request may have {MAX_CHOICES}"
        param = "prompt" if num_prompts > 1 else "n"
        raise InvalidRequest(f"{param}: {rule}", param=param)
    num_bytes = request[FACTS].num_body_bytes * num_per_prompt  # each completion sends the prompt
    limit = _MAX_BODIES * settings.max_body_bytes
    if num_bytes > limit:
        raise InvalidRequest(f"n: {num_bytes} bytes for all completions of a prompt exceed {limit}", param="n")


async def _prompt_lengths(request: web.Request, completion: CompletionRequest, name: ModelName) -> Sequence[int]:
    """Return the number of characters of each prompt if offsets of log probabilities begin behind the prompt."""
    if completion.logprobs is None or completion.echo:
        return ()
    if completion.truncate_prompt_tokens is not None:  # only the tokenizer stage knows the rest of the prompt
        return [0] * len(completion.prompt)

    async def length(prompt: Prompt) -> int:
        if isinstance(prompt, str):
            return len(prompt)
        return len(await detokenized(request, name.model_id, prompt, has_special_tokens=False))

    return await asyncio.gather(*map(length, completion.prompt))
