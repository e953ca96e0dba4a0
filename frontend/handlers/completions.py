"""The endpoints of chat completions and completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext

from aiohttp import web
from msgspec.structs import replace

from frontend.errors import APIError, GenerationTimeout, InvalidRequest
from frontend.fan_out import merged
from frontend.handlers.bodies import ignored_header, read_body
from frontend.handlers.image_urls import fetched_images, may_fetch
from frontend.handlers.keepalive import Keepalive
from frontend.handlers.tokenization import detokenized
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import MAX_CHOICES, CompletionRequest, Prompt
from frontend.protocol.fields import GenerationBody
from frontend.request_context import (
    CLIENT_CLOSED,
    FACTS,
    LIMITS,
    SETTINGS,
    TRITON,
    Admitted,
    RequestFacts,
    find_model,
    json_response,
    unexpected,
)
from frontend.stream_record import StreamRecord, server_timing
from frontend.telemetry.observer import OBSERVER
from frontend.translate import sse
from frontend.translate.chat_reply import ChatReply
from frontend.translate.completion_reply import CompletionReply
from frontend.translate.requests import chat_to_requests, completion_to_requests, ignored_fields
from frontend.triton.models import ModelName
from model_repository.contract.output import GenerationChunk
from model_repository.contract.request import GenerationRequest
from model_repository.model_parameters import RequestDefaults


class EventStream(web.StreamResponse):
    """A stream whose head leaves in one packet with the first events."""

    _send_headers_immediately = False  # aiohttp's own, see its `Response`


type _Chunks = AsyncGenerator[tuple[int, GenerationChunk], None]

_MAX_BODIES = 4  # bytes that one request may send to Triton, in bodies of the largest size


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions."""
    chat, ignored = await read_body(request, ChatCompletionRequest)
    name = await _find_model(request, chat)
    headers = ignored_header(request, ignored + ignored_fields(chat, name))
    _refuse_too_many(request, 1, chat.n or 1)
    generations = chat_to_requests(chat, name, _defaults(request, name), request[FACTS].request_id, may_fetch(request))
    async with _admitted(request, chat, name, generations, len(generations)) as admitted:
        admitted = await _with_images(request, chat, admitted)
        return await _answer(request, admitted, ChatReply(chat, name, int(time.time())), headers)


async def create_completion(request: web.Request) -> web.StreamResponse:
    """POST /v1/completions."""
    completion, ignored = await read_body(request, CompletionRequest)
    name = await _find_model(request, completion)
    headers = ignored_header(request, ignored + ignored_fields(completion, name))
    _refuse_too_many(request, len(completion.prompt), completion.best_of or completion.n or 1)
    generations = completion_to_requests(completion, name, _defaults(request, name), request[FACTS].request_id)
    num_per_prompt = len(generations) // len(completion.prompt)
    async with _admitted(request, completion, name, generations, num_per_prompt) as admitted:
        num_chars = await _prompt_lengths(request, completion, name)
        reply = CompletionReply(completion, name, int(time.time()), num_chars)
        if completion.stream and len(completion.prompt) > 1:
            # A prompt can be refused with a status only before the stream begins.
            await request.app[TRITON].check(name.model.ensemble, admitted.generations[::num_per_prompt])
        return await _answer(request, admitted, reply, headers)


@asynccontextmanager
async def _admitted(
    request: web.Request,
    body: GenerationBody,
    name: ModelName,
    generations: Sequence[GenerationRequest],
    num_per_prompt: int,
) -> AsyncIterator[Admitted]:
    """Count a request as in flight, also while it waits, and apply the limits of its key and model.

    Raises:
        APIError: the key has reached a limit, or the model is full.
    """
    limits = request.app.get(LIMITS)
    with request.app[OBSERVER].in_flight(name.model.id):
        if limits is None:
            triton, ensemble = request.app[TRITON], name.model.ensemble
            yield Admitted(generations, lambda index, generation: triton.generate(ensemble, generation))
            return
        async with limits.generating(request, body, name, generations, num_per_prompt) as admitted:
            yield admitted


async def _with_images(request: web.Request, chat: ChatCompletionRequest, admitted: Admitted) -> Admitted:
    """Fetch the images that a chat names by URL."""
    images = admitted.generations[0].images
    if all(images):
        return admitted
    images = await fetched_images(request, chat, images)
    _refuse_too_many(request, 1, chat.n or 1)
    return admitted._replace(generations=[replace(each, images=images) for each in admitted.generations])


async def _find_model(request: web.Request, body: GenerationBody) -> ModelName:
    request[FACTS].label(body.bookkeeping())
    name = await find_model(request, body.model)
    request.app[TRITON].require_available(name.model.ensemble)
    return name


def _defaults(request: web.Request, name: ModelName) -> RequestDefaults:
    return request.app[SETTINGS].request_defaults().overridden_by(name.model.parameters.defaults)


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

    async def length(prompt: Prompt) -> int:
        if isinstance(prompt, str):
            return len(prompt)
        return len(await detokenized(request, name.model.ensemble, prompt, has_special_tokens=False))

    return await asyncio.gather(*map(length, completion.prompt))


async def _answer(
    request: web.Request, admitted: Admitted, reply: sse.Reply, headers: Mapping[str, str]
) -> web.StreamResponse:
    facts = request[FACTS]
    facts.id = reply.id
    facts.stream = record = StreamRecord(admitted.generations, reply.num_per_prompt)
    answer = _answer_with_events if record.is_stream else _answer_as_a_whole
    async with aclosing(merged([admitted.run(*each) for each in enumerate(admitted.generations)])) as chunks:
        return await answer(request, reply, record, chunks, headers)


async def _answer_as_a_whole(
    request: web.Request, reply: sse.Reply, record: StreamRecord, chunks: _Chunks, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Answer with the only chunk of each completion, in the order of the request."""
    collected: dict[int, GenerationChunk] = {}
    async with _within_time(request):
        async for index, chunk in chunks:
            record.add(index, chunk)
            collected[index] = chunk
    assert record.num_finished == len(record.completions), "a generation ends with a finish reason or an error"
    timing = server_timing(record.slowest, time.monotonic() - request[FACTS].started_at)
    body = reply.whole([collected[index] for index in range(len(record.completions))])
    return json_response(body, headers={**headers, "Server-Timing": timing})


async def _answer_with_events(
    request: web.Request, reply: sse.Reply, record: StreamRecord, chunks: _Chunks, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Write the events of a stream. The last chunk and [DONE] are one write, since each write is a packet.

    Raises:
        Exception: an error before the first byte.
    """
    encoder, unwritten = sse.EventEncoder(reply), b""
    response = EventStream(headers={**sse.HEADERS, **headers})
    num_running = len(record.completions)
    async with Keepalive(request, response, request.app[SETTINGS].stream_keepalive_s) as keepalive:
        try:
            async with _within_time(request):
                index, chunk = await anext(chunks)
                record.add(index, chunk)
                await keepalive.prepare()
                unwritten = encoder.opening(chunk)
                while True:
                    unwritten += encoder.encode(index, chunk)
                    num_running -= chunk.finish_reason is not None
                    if not num_running:
                        break
                    if unwritten:
                        events, unwritten = unwritten, b""
                        await response.write(events)
                    index, chunk = await anext(chunks)
                    record.add(index, chunk)
            await response.write_eof(unwritten + sse.DONE)
        except ConnectionResetError:
            request[FACTS].error_code = CLIENT_CLOSED
        except Exception as exc:
            await _end_with_error(response, keepalive, exc, request[FACTS], unwritten)
    return response


async def _end_with_error(
    response: web.StreamResponse, keepalive: Keepalive, exc: Exception, facts: RequestFacts, unwritten: bytes
) -> None:
    """End a stream with an error event.

    Raises:
        Exception: `exc` itself, if no byte has been sent.
    """
    try:
        await keepalive.settled()
        if not response.prepared:
            raise exc
        error = exc if isinstance(exc, APIError) else unexpected(exc, facts)
        facts.fail(error)
        await response.write_eof(unwritten + sse.event(error.envelope()) + sse.DONE)
    except ConnectionResetError:
        facts.error_code = CLIENT_CLOSED


def _within_time(request: web.Request) -> AbstractAsyncContextManager[None]:
    """Stop a block at the request's deadline, if there is one.

    Raises:
        GenerationTimeout: the request took longer than `request_timeout_s`.
    """
    limit_s = request.app[SETTINGS].request_timeout_s
    return _within(limit_s, request[FACTS].started_at) if limit_s else nullcontext()


@asynccontextmanager
async def _within(limit_s: float, started_at: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(max(limit_s - (time.monotonic() - started_at), 0)):
            yield
    except TimeoutError as exc:
        raise GenerationTimeout(f"The answer took longer than {limit_s:g} seconds") from exc
