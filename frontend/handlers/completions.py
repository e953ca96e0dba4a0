"""Chat completions and completions: one coroutine for each, and how both are answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager

from aiohttp import web

from frontend import sse
from frontend.errors import APIError, GenerationTimeout, InvalidRequest
from frontend.fan_out import merged
from frontend.handlers.bodies import ignored_header, read_body
from frontend.handlers.pings import Pings
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import CompletionRequest, Prompt
from frontend.protocol.fields import GenerationBody
from frontend.request_context import (
    CLIENT_CLOSED,
    FACTS,
    LIMITS,
    SETTINGS,
    TRITON,
    RequestFacts,
    find_model,
    json_response,
    unexpected,
)
from frontend.stream_record import StreamRecord, server_timing
from frontend.telemetry.observer import OBSERVER
from frontend.translate.chat_reply import ChatReply
from frontend.translate.completion_reply import CompletionReply
from frontend.translate.framing import Framer
from frontend.translate.reply import Reply
from frontend.translate.requests import chat_to_requests, completion_to_requests, ignored_fields
from frontend.triton.models import ModelName
from model_repository.contract.output import GenerationChunk
from model_repository.contract.request import GenerationRequest
from model_repository.model_parameters import RequestDefaults

type _Chunks = AsyncGenerator[tuple[int, GenerationChunk], None]

_MAX_BODIES = 4  # of the largest size, which one request may send to Triton


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions."""
    chat, ignored = await read_body(request, ChatCompletionRequest)
    name = await _find_model(request, chat)
    headers = ignored_header(request, ignored + ignored_fields(chat, name))
    _refuse_too_many(request, 1, chat.n or 1)
    generations = chat_to_requests(chat, name, _defaults(request, name), request[FACTS].request_id)
    async with _admitted(request, chat, name, generations, len(generations)) as admitted:
        return await _answer(request, name, admitted, ChatReply(chat, name, int(time.time())), headers)


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
            # Once the stream of several prompts has begun, none of them could be refused with a status of its own.
            triton = request.app[TRITON]
            await asyncio.gather(*(triton.check(name.model.slug, each) for each in admitted[::num_per_prompt]))
        return await _answer(request, name, admitted, reply, headers)


@asynccontextmanager
async def _admitted(
    request: web.Request,
    body: GenerationBody,
    name: ModelName,
    generations: Sequence[GenerationRequest],
    num_per_prompt: int,
) -> AsyncIterator[Sequence[GenerationRequest]]:
    """Count a request as in flight, and hold it to the limits; waiting requests count as demand too.

    Raises:
        APIError: a limit of the key is reached, or the model has no room.
    """
    limits = request.app.get(LIMITS)
    with request.app[OBSERVER].in_flight(name.model.id):
        if limits is None:
            yield generations
            return
        async with limits.generating(request, body, name, generations, num_per_prompt) as admitted:
            yield admitted


async def _find_model(request: web.Request, body: GenerationBody) -> ModelName:
    request[FACTS].label(body.bookkeeping())
    name = await find_model(request, body.model)
    request.app[TRITON].require_available(name.model.slug)
    return name


def _defaults(request: web.Request, name: ModelName) -> RequestDefaults:
    return request.app[SETTINGS].request_defaults().overridden_by(name.model.parameters.defaults)


def _refuse_too_many(request: web.Request, num_prompts: int, num_per_prompt: int) -> None:
    """Refuse more completions than one request may ask for, and prompts that would be sent too often."""
    settings = request.app[SETTINGS]
    num_choices = num_prompts * num_per_prompt
    if num_choices > settings.max_choices:
        rule = f"{num_choices} completions are more than one request may ask for, which is {settings.max_choices}"
        param = "prompt" if num_prompts > 1 else "n"
        raise InvalidRequest(f"{param}: {rule}", param=param)
    num_bytes = request[FACTS].num_body_bytes * num_per_prompt  # each completion is a request of its own to Triton
    limit = _MAX_BODIES * settings.max_body_bytes
    if num_bytes > limit:
        raise InvalidRequest(f"n: a body of so many bytes for each completion exceeds {limit} bytes", param="n")


async def _prompt_lengths(request: web.Request, completion: CompletionRequest, name: ModelName) -> Sequence[int]:
    """Return the prompts' characters, where the offsets of log probabilities count from their ends."""
    if completion.logprobs is None or completion.echo:
        return ()
    triton, slug = request.app[TRITON], name.model.slug

    async def length(prompt: Prompt) -> int:
        if isinstance(prompt, str):
            return len(prompt)
        return len(await triton.detokenize(slug, prompt, has_special_tokens=False))

    return await asyncio.gather(*map(length, completion.prompt))


async def _answer(
    request: web.Request,
    name: ModelName,
    generations: Sequence[GenerationRequest],
    reply: Reply,
    headers: Mapping[str, str],
) -> web.StreamResponse:
    facts, triton = request[FACTS], request.app[TRITON]
    facts.id, facts.num_per_prompt = reply.id, reply.num_per_prompt
    record = StreamRecord(generations, reply.num_per_prompt)
    request.app[OBSERVER].began_stream(facts, record)
    merging = merged([triton.generate(name.model.slug, each) for each in generations])
    answer = _answer_with_events if record.is_stream else _answer_as_a_whole
    with record.rules_kept():
        async with aclosing(merging) as chunks:
            return await answer(request, reply, record, chunks, headers)


async def _answer_as_a_whole(
    request: web.Request, reply: Reply, record: StreamRecord, chunks: _Chunks, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Answer with the only chunk of each completion, in the order in which they were asked for."""
    facts = request[FACTS]
    collected: dict[int, GenerationChunk] = {}
    async with _within_time(request):
        async for index, chunk in chunks:
            facts.saw(index, chunk)
            collected[index] = chunk
    record.require_ends()
    timing = server_timing(record.slowest, time.monotonic() - facts.started_at)
    body = reply.whole([collected[index] for index in range(len(record.completions))])
    return json_response(body, headers={**headers, "Server-Timing": timing})


async def _answer_with_events(
    request: web.Request, reply: Reply, record: StreamRecord, chunks: _Chunks, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Write the events of a stream. The events of chunks that come together leave together: each write is a packet.

    Until the first chunk is there nothing is sent, but for pings: without one, an error is still a status.

    Raises:
        Exception: of such an error.
    """
    facts, framer, unwritten = request[FACTS], Framer(reply), b""
    response = web.StreamResponse(headers={**sse.HEADERS, **headers})
    num_running = len(record.completions)
    async with Pings(request, response, request.app[SETTINGS].ping_interval_s) as pings:
        try:
            async with _within_time(request):
                index, chunk = await anext(chunks)
                facts.saw(index, chunk)
                await pings.prepare()
                unwritten = framer.opening(chunk)
                with record.rules_kept():
                    while True:
                        unwritten += framer.frame(index, chunk)
                        num_running -= chunk.finish_reason is not None
                        if not num_running:
                            break
                        if unwritten:
                            events, unwritten = unwritten, b""
                            await response.write(events)
                        index, chunk = await anext(chunks)
                        facts.saw(index, chunk)
            await response.write_eof(unwritten + sse.DONE)
        except ConnectionResetError:
            facts.error_code = CLIENT_CLOSED
        except Exception as exc:
            await _end_with_error(response, pings, exc, facts, unwritten)
    return response


async def _end_with_error(
    response: web.StreamResponse, pings: Pings, exc: Exception, facts: RequestFacts, unwritten: bytes
) -> None:
    """End a stream with an error event.

    Raises:
        Exception: the error itself, where nothing has been sent yet.
    """
    try:
        await pings.settled()
        if not response.prepared:
            raise exc
        error = exc if isinstance(exc, APIError) else unexpected(exc, facts)
        facts.fail(error)
        await response.write_eof(unwritten + sse.error_event(error) + sse.DONE)
    except ConnectionResetError:
        facts.error_code = CLIENT_CLOSED


@asynccontextmanager
async def _within_time(request: web.Request) -> AsyncIterator[None]:
    """Stop what takes longer than a request may, from its beginning.

    Raises:
        GenerationTimeout: it did.
    """
    limit_s = request.app[SETTINGS].request_timeout_s
    passed_s = time.monotonic() - request[FACTS].started_at
    try:
        async with asyncio.timeout(max(limit_s - passed_s, 0) if limit_s else None):
            yield
    except TimeoutError as exc:
        raise GenerationTimeout(f"The answer took longer than {limit_s:g} seconds") from exc
