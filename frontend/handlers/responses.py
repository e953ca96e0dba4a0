"""The endpoints of OpenAI's Responses API."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
import orjson
from aiohttp import web
from msgspec.structs import replace

from frontend.errors import InvalidRequest, shown
from frontend.handlers.answer_log import log_id
from frontend.handlers.answer_run import work_id
from frontend.handlers.answer_stream import POLL_S, running_answer, stream_answer
from frontend.handlers.background import BACKGROUND
from frontend.handlers.bodies import reserve, work_on_body
from frontend.handlers.call import Call
from frontend.handlers.completions import answer_chat, generated, num_prompt_tokens
from frontend.handlers.stored import (
    Page,
    body_of,
    delete_stored,
    find_stored,
    id_in,
    listed_items,
    owner_of,
    store_of,
    stored,
)
from frontend.handlers.summaries import INSTRUCTION, SUMMARIES, sealed, with_summaries
from frontend.handlers.turns import ResponseHead, Turn, turn_of
from frontend.json_pieces import json_bytes
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.response_objects import InputTokens
from frontend.protocol.responses import (
    COMPACTION_TRIGGER,
    CompactRequest,
    InputTokensRequest,
    ResponseItem,
    ResponsesRequest,
)
from frontend.request_context import json_response
from frontend.store.types import Delete, Item, Kind, Stored
from frontend.translate.reply import Event, Keep
from frontend.translate.responses_chat import PlacedItem, responses_to_chat
from frontend.translate.responses_reply import ResponsesReply
from frontend.translate.summary_reply import SummaryReply, compaction_of

_CANCEL_S = 2.0  # longest wait for the process that does the work
_SHARE_OF_ANSWER = 4  # a quarter of the context window, if the request has no max_output_tokens


async def create_response(call: Call[ResponsesRequest]) -> web.StreamResponse:
    """POST /v1/responses."""
    body, turn = call.body, await turn_of(call.request, call.body)
    keep = None if turn.store is None else turn.keep
    if body.input[-1].type == COMPACTION_TRIGGER:
        if body.background:
            raise InvalidRequest("background: must be absent or false beside compaction_trigger", param="background")
        return await answer_chat(
            *await _summary_call(call, turn, keep), max_prompt_tokens=_max_prompt_tokens(call, truncates=True)
        )
    items, made = turn.items(), list[dict[str, Any]]()
    chat = await _chat_call(call, items)
    if body.context_management and await num_prompt_tokens(chat) >= body.context_management[0].compact_threshold:
        summary = await _summary(call, turn)
        made = summary["output"]
        items = [("context_management", ResponseItem.model_validate(made[0])), *turn.last_of_user()]
        chat = await _chat_call(call, items)
    if body.background:
        return await _begin_response(call, turn, chat, made)
    reply = ResponsesReply(body, chat.body, call.name, int(time.time()), keep, made)
    return await answer_chat(chat, reply, _max_prompt_tokens(call))


async def compact(call: Call[CompactRequest]) -> web.Response:
    """POST /v1/responses/compact."""
    turn = await turn_of(call.request, call.body)
    return json_response(compaction_of(await _summary(call, turn)), headers=call.headers)


async def _summary(call: Call[Any], turn: Turn) -> Event:
    """Return an answer with a summary of the conversation alone."""
    chat, reply = await _summary_call(call, turn, None, stream=None)
    return await generated(chat, reply, _max_prompt_tokens(call, truncates=True))


async def _summary_call(
    call: Call[Any], turn: Turn, keep: Keep | None, **changed: Any
) -> tuple[Call[ChatCompletionRequest], SummaryReply]:
    """Return the chat that asks for a summary, and what writes its answer.

    If the conversation and the summary exceed the context window, the oldest turns are left out.
    """
    limit = call.name.model.parameters.context_window // _SHARE_OF_ANSWER
    fields = {
        **changed,
        "tools": None,
        "tool_choice": None,
        "text": None,
        "temperature": 0.0,
        "max_output_tokens": limit,
    }
    body = ResponsesRequest.made({**call.body.__dict__, **fields})
    instruction = ResponseItem.model_validate(
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": INSTRUCTION}]}
    )
    asking = Call(call.request, call.app, body, call.name, call.headers, call.ignored, call.places)
    chat = await _chat_call(asking, [*turn.items(), ("input", instruction)])
    secret = await call.app[SUMMARIES].secret(call.app)
    seal = partial(sealed, secret=secret)
    return chat, SummaryReply(seal, body, chat.body, call.name, int(time.time()), keep)


async def count_input_tokens(call: Call[InputTokensRequest]) -> web.Response:
    """POST /v1/responses/input_tokens."""
    chat = await _chat_call(call, (await turn_of(call.request, call.body)).items())
    num_tokens = await num_prompt_tokens(chat, _max_prompt_tokens(call))
    answer: InputTokens = {"object": "response.input_tokens", "input_tokens": num_tokens}
    return json_response(answer, headers=call.headers)


async def get_response(request: web.Request) -> web.StreamResponse:
    """GET /v1/responses/{response_id}."""
    found, head = await _found(request)
    is_stream, num_events = _asked_events(request)
    if is_stream:
        if not head.is_background:
            rule = "only an answer with `background: true` has events that can be read again"
            raise InvalidRequest(f"stream: {rule}", param="stream")
        return await stream_answer(request, found.id, num_events, {})
    return await _shown(request, found, head)


async def _shown(request: web.Request, found: Stored, head: ResponseHead) -> web.Response:
    if head.is_running and (running := await running_answer(request, found.id, head)) is not None:
        return web.Response(body=await work_on_body(request, json_bytes, running), content_type="application/json")
    await reserve(request, found.num_item_bytes)
    body, store = await body_of(request, found), store_of(request)
    items = await stored(store.items(owner_of(request), found.id, start=head.num_input, is_newest_first=False))
    return json_response(await work_on_body(request, _joined, body, items.items if items else ()))


def _joined(body: bytes, output: Sequence[Item]) -> dict[str, Any]:
    return {**orjson.loads(body), "output": [orjson.Fragment(item.value) for item in output]}


async def delete_response(request: web.Request) -> web.Response:
    """DELETE /v1/responses/{response_id}."""
    identity = id_in(request, "response_id")
    others = Delete(Kind.WORK, work_id(identity)), Delete(Kind.LOG, log_id(identity))
    await delete_stored(request, Kind.RESPONSE, "response_id", identity, *others)
    return json_response({"id": identity, "object": "response", "deleted": True})


async def _begin_response(
    call: Call[ResponsesRequest], turn: Turn, chat: Call[ChatCompletionRequest], made: Sequence[dict[str, Any]]
) -> web.StreamResponse:
    if (background := call.app.get(BACKGROUND)) is None:
        rule = "needs a stored answer, and this server stores nothing (--store none)"
        raise InvalidRequest(f"background: {rule}", param="background", code="unsupported_value")
    begun = await background.begin(call, turn, chat, made, _max_prompt_tokens(call))
    if call.body.stream:
        return await stream_answer(call.request, begun["id"], 0, call.headers)
    return json_response(begun, headers=call.headers)


def _asked_events(request: web.Request) -> tuple[bool, int]:
    """Return whether a query asks for events, and the number of those that the client has.

    Raises:
        InvalidRequest: the query breaks a rule.
    """
    stream, after = request.query.get("stream", "false"), request.query.get("starting_after")
    if stream not in ("true", "false"):
        raise InvalidRequest(f"stream={shown(stream)}: must be true or false", param="stream")
    if after is None:
        return stream == "true", 0
    if stream == "false" or not re.fullmatch("[0-9]{1,9}", after):
        rule = "must be the sequence_number of an event, beside stream=true"
        raise InvalidRequest(f"starting_after={shown(after)}: {rule}", param="starting_after")
    return True, int(after) + 1


async def cancel_response(request: web.Request) -> web.Response:
    """POST /v1/responses/{id}/cancel."""
    store, owner = store_of(request), owner_of(request)
    found, head = await _found(request)
    if not head.is_background:
        raise InvalidRequest("id: only an answer with `background: true` can be cancelled", param="id")
    while head.is_running and not head.is_cancelled:
        stopped = msgspec.json.encode(replace(head, is_cancelled=True))
        await stored(store.replace(owner, found.id, stopped, found.version))
        found, head = await _found(request)
    until_s = time.monotonic() + _CANCEL_S
    while head.is_running and time.monotonic() < until_s:
        await asyncio.sleep(POLL_S)
        found, head = await _found(request)
    return await _shown(request, found, head)


async def list_input_items(request: web.Request) -> web.Response:
    """GET /v1/responses/{response_id}/input_items."""
    found, head = await _found(request)
    return json_response(await listed_items(request, found, Page(request), stop=head.num_input))


async def _found(request: web.Request) -> tuple[Stored, ResponseHead]:
    identity = id_in(request, "response_id")
    found = await find_stored(request, Kind.RESPONSE, "response_id", identity)
    return found, msgspec.json.decode(found.head, type=ResponseHead)


async def _chat_call(
    call: Call[InputTokensRequest] | Call[ResponsesRequest], items: Sequence[PlacedItem]
) -> Call[ChatCompletionRequest]:
    items = await with_summaries(call.app, items)
    chat = await work_on_body(call.request, responses_to_chat, call.body, call.name, call.places, items)
    return Call(call.request, call.app, chat, call.name, call.headers, call.ignored, call.places)


def _max_prompt_tokens(
    call: Call[InputTokensRequest] | Call[ResponsesRequest], *, truncates: bool = False
) -> int | None:
    """Return the room that the answer leaves in the context window; None: the conversation is not truncated."""
    if call.body.truncation != "auto" and not truncates:
        return None
    window = call.name.model.parameters.context_window
    limit = call.body.max_output_tokens if isinstance(call.body, ResponsesRequest) and not truncates else None
    return max(window - (limit or window // _SHARE_OF_ANSWER), 0)
