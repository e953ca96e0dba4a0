"""Answers in the background for their readers: the events from any one on, also while they are made elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from aiohttp import web

from frontend.errors import APIError
from frontend.handlers.answer_log import Cut, LogReader, Replay, log_id
from frontend.handlers.bodies import reserve, work_on_body
from frontend.handlers.completions import EventStream
from frontend.handlers.keepalive import Keepalive
from frontend.handlers.large_answers import LARGE_ANSWERS, write
from frontend.handlers.stored import body_of, not_stored, owner_of, store_of, stored
from frontend.handlers.turns import ResponseHead
from frontend.protocol.response_objects import Response
from frontend.request_context import CLIENT_CLOSED, FACTS, SETTINGS, is_draining
from frontend.store.place import outlives_frontend
from frontend.store.types import Kind
from frontend.translate import sse

POLL_S = 0.1


async def running_answer(request: web.Request, response_id: str, head: ResponseHead) -> Response | None:
    """Return an answer so far; None: it has no log."""
    if (replay := await _replay(request, response_id, reads_all=True)) is None:
        return None
    reader = LogReader(store_of(request), owner_of(request), response_id)
    await stored(reader.read_into(replay))
    if head.is_cancelled:
        return replay.reply.so_far("cancelled")
    return replay.reply.so_far("in_progress" if replay.has_begun else "queued")


async def stream_answer(
    request: web.Request, response_id: str, num_events: int, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Answer with the events of an answer, to its end, and as they are made.

    Args:
        num_events: that the client has.

    Raises:
        NotStored: the events are not stored.
    """
    if (replay := await _replay(request, response_id)) is None:
        raise not_stored("id", response_id)
    response = EventStream(headers={**sse.HEADERS, **headers})
    async with Keepalive(request, response, request.app[SETTINGS].stream_keepalive_s, None) as keepalive:
        try:
            await _write_events(request, response, keepalive, replay, Cut(num_events))
            await keepalive.prepare()
            await response.write_eof()
        except ConnectionResetError:
            request[FACTS].error_code = CLIENT_CLOSED
        except APIError as exc:  # the client reads the rest in another stream
            await keepalive.settled()
            if not response.prepared:
                raise
            request[FACTS].fail(exc)
    return response


async def _replay(request: web.Request, response_id: str, *, reads_all: bool = False) -> Replay | None:
    """Return an answer before its first entry, in memory for all of them if `reads_all`; None: it has no log."""
    identity = log_id(response_id)
    found = (await stored(store_of(request).read(owner_of(request), Kind.LOG, [identity]))).get(identity)
    if found is None:
        return None
    if reads_all:
        await reserve(request, found.num_item_bytes)
    return await work_on_body(request, Replay, response_id, await body_of(request, found), request.app[SETTINGS])


async def _write_events(
    request: web.Request, response: EventStream, keepalive: Keepalive, replay: Replay, cut: Cut
) -> None:
    """Write events to the last one. A frontend that stops leaves the rest to another one, if that has the store."""
    app = request.app
    reader, memory = LogReader(store_of(request), owner_of(request), replay.reply.id), app[LARGE_ANSWERS]
    is_lasting = outlives_frontend(app[SETTINGS])
    while not replay.is_over and not (is_lasting and is_draining(app)):
        if (entries := await stored(reader.next())) is None:
            return
        for entry in entries:
            for chunk in entry.chunks:
                memory.count(request, replay.name, chunk)
            events = cut.rest(replay.events(entry))
            if replay.is_over:
                await _stored(request, replay.reply.id)
            if events:
                await keepalive.prepare()
                await write(response, events)
            await asyncio.sleep(0)
        if not entries:
            await asyncio.sleep(POLL_S)


async def _stored(request: web.Request, response_id: str) -> None:
    """Wait until the end of an answer is stored: the client's next request may continue it."""
    while True:
        found = await stored(store_of(request).read(owner_of(request), Kind.RESPONSE, [response_id]))
        if not any(msgspec.json.decode(each.head, type=ResponseHead).is_running for each in found.values()):
            return
        await asyncio.sleep(POLL_S)
