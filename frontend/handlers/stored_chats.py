"""The endpoints of stored chats."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import orjson
from aiohttp import web
from msgspec import Struct

from frontend.errors import InvalidRequest, StoreFailed
from frontend.handlers.bodies import read_body, reserve, work_on_body
from frontend.handlers.call import Call, ignored_header, refuse_ignored
from frontend.handlers.stored import (
    STORE,
    Page,
    body_of,
    delete_stored,
    find_stored,
    id_in,
    listed,
    listed_items,
    not_stored,
    owner_of,
    store_of,
    stored,
)
from frontend.json_pieces import json_bytes
from frontend.protocol.chat import ChatCompletionRequest, ChatMessage
from frontend.protocol.conversations import MetadataRequest
from frontend.request_context import SETTINGS, json_response
from frontend.store.types import Item, Kind, Stored
from frontend.translate.reply import Keep

_MAX_METADATA_BYTES = 65_536  # 16 values of OpenAI's size have less
_SCANNED = 100  # chats that are read at a time, to find those that a query asks for


class _Head(Struct, frozen=True):
    """The head of a stored chat. Its body is the answer, its items are the messages of the request."""

    model: str
    metadata: dict[str, Any] = {}


def keep_of(call: Call[ChatCompletionRequest]) -> Keep | None:
    """Return the function that stores the answer to a chat; None: it is not to be stored.

    Raises:
        InvalidRequest: its metadata are too large.
    """
    if not call.body.store or STORE not in call.app:
        return None
    if (num_bytes := len(orjson.dumps(call.body.metadata))) > _MAX_METADATA_BYTES:
        rule = f"has {num_bytes:,} bytes of JSON: at most {_MAX_METADATA_BYTES:,} with `store: true`"
        raise InvalidRequest(f"metadata: {rule}", param="metadata")
    return partial(_keep, call)


async def _keep(call: Call[ChatCompletionRequest], completion: Mapping[str, Any]) -> bool:
    items, body = await asyncio.to_thread(_made, call.body, completion)  # they may have many megabytes
    head = msgspec.json.encode(_Head(completion["model"], call.body.metadata or {}))
    try:
        await stored(call.app[STORE].create(owner_of(call.request), Kind.CHAT, completion["id"], head, items, body))
    except StoreFailed:
        return False
    return True


def _made(chat: ChatCompletionRequest, completion: Mapping[str, Any]) -> tuple[list[Item], bytes]:
    """Return items and body of a chat."""
    items = []
    for number, message in enumerate(chat.messages):
        name = f"{completion['id']}-{number}"
        items.append(Item(name, orjson.dumps({"id": name, **_written(message)})))
    return items, json_bytes(completion)


def _written(message: ChatMessage) -> dict[str, Any]:
    """Return a message with its texts as one, and with its parts if there is more than a text."""
    fields = message.model_dump(by_alias=True, exclude_none=True)
    parts = fields.get("content") or []
    texts = [part["text"] for part in parts if part["type"] == "text"]
    is_text = len(parts) == len(texts) <= 1
    return {**fields, "content": "".join(texts) or None, "content_parts": None if is_text else parts}


async def list_chats(request: web.Request) -> web.Response:
    """GET /v1/chat/completions."""
    page, model = Page(request, is_newest_first=False), request.query.get("model")
    wanted = {name[9:-1]: value for name, value in request.query.items() if name.startswith("metadata[")}
    ids: list[str] = [page.after]  # the next chats are behind the last one of these that is still there
    found, read = list[Stored](), None
    await reserve(request, _SCANNED * _MAX_METADATA_BYTES)
    while len(found) <= page.limit and (read is None or len(read) == _SCANNED):
        read = await stored(
            store_of(request).page(
                owner_of(request), Kind.CHAT, after=ids[-1], limit=_SCANNED, is_newest_first=page.is_newest_first
            )
        )
        if read is not None:
            ids += [each.id for each in read]
            found += await work_on_body(request, _matching, read, model, wanted)
        elif len(ids) == 1:
            raise not_stored("after", page.after)
        else:
            ids.pop()
    totals = itertools.accumulate(each.num_body_bytes for each in found[: page.limit])
    num_fitting = sum(total <= request.app[SETTINGS].max_body_bytes for total in totals)
    shown = found[: max(num_fitting, 1)]
    await reserve(request, sum(each.num_body_bytes for each in shown))
    bodies = await stored(store_of(request).bodies(owner_of(request), [each.id for each in shown]))
    chats = await work_on_body(request, _joined, shown, bodies)
    return json_response(listed([each.id for each in shown], chats, has_more=len(shown) < len(found)))


async def get_chat(request: web.Request) -> web.Response:
    """GET /v1/chat/completions/{completion_id}."""
    return json_response(await _chat(request))


async def update_chat(request: web.Request) -> web.Response:
    """POST /v1/chat/completions/{completion_id}."""
    found = await _found(request)
    body, ignored = await read_body(request, MetadataRequest)
    refuse_ignored(request.app, ignored)
    head = msgspec.json.encode(msgspec.structs.replace(_head(found), metadata=body.metadata))
    await stored(store_of(request).replace(owner_of(request), found.id, head))
    return json_response(await _chat(request), headers=ignored_header(ignored))


async def delete_chat(request: web.Request) -> web.Response:
    """DELETE /v1/chat/completions/{completion_id}."""
    identity = id_in(request, "completion_id")
    await delete_stored(request, Kind.CHAT, "completion_id", identity)
    return json_response({"id": identity, "object": "chat.completion.deleted", "deleted": True})


async def list_messages(request: web.Request) -> web.Response:
    """GET /v1/chat/completions/{completion_id}/messages."""
    found, page = await _found(request), Page(request, is_newest_first=False)
    return json_response(await listed_items(request, found, page))


async def _found(request: web.Request) -> Stored:
    return await find_stored(request, Kind.CHAT, "completion_id", id_in(request, "completion_id"))


def _matching(read: Sequence[Stored], model: str | None, metadata: Mapping[str, str]) -> list[Stored]:
    """Return the chats with a model and these metadata."""
    heads = [(each, _head(each)) for each in read]
    return [each for each, head in heads if model in (None, head.model) and metadata.items() <= head.metadata.items()]


def _head(found: Stored) -> _Head:
    return msgspec.json.decode(found.head, type=_Head)


async def _chat(request: web.Request) -> dict[str, Any]:
    found = await _found(request)
    [chat] = await work_on_body(request, _joined, [found], {found.id: await body_of(request, found)})
    return chat


def _joined(found: Sequence[Stored], bodies: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """Return the chats that have bodies: the others were deleted in the meantime."""
    return [{**orjson.loads(bodies[each.id]), "metadata": _head(each).metadata} for each in found if each.id in bodies]
