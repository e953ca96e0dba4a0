"""The endpoints of stored chats."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
import orjson
from aiohttp import web
from msgspec import Struct

from frontend.errors import StoreFailed
from frontend.handlers.bodies import read_body
from frontend.handlers.call import Call, ignored_header, refuse_ignored
from frontend.handlers.stored import (
    STORE,
    Page,
    delete_stored,
    find_stored,
    id_in,
    listed_items,
    not_stored,
    owner_of,
    store_of,
    stored,
)
from frontend.json_pieces import json_bytes
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.conversations import MetadataRequest
from frontend.request_context import json_response
from frontend.store.types import Item, Kind, Stored
from frontend.translate.reply import Keep

_SCANNED = 100  # chats that are read at a time, to find those that a query asks for


class _Head(Struct, frozen=True):
    """The head of a stored chat; its items are the messages of the request."""

    completion: msgspec.Raw
    model: str
    metadata: dict[str, Any] = {}


def keep_of(call: Call[ChatCompletionRequest]) -> Keep | None:
    """Return the function that stores the answer to a chat; None: it is not to be stored."""
    return partial(_keep, call) if call.body.store and STORE in call.app else None


async def _keep(call: Call[ChatCompletionRequest], completion: Mapping[str, Any]) -> bool:
    head, items = await asyncio.to_thread(_made, call.body, completion)  # they may have many megabytes
    try:
        await stored(call.app[STORE].create(owner_of(call.request), Kind.CHAT, completion["id"], head, items))
    except StoreFailed:
        return False
    return True


def _made(chat: ChatCompletionRequest, completion: Mapping[str, Any]) -> tuple[bytes, list[Item]]:
    """Return head and items of a chat."""
    items = []
    for number, message in enumerate(chat.messages):
        name = f"{completion['id']}-{number}"
        items.append(Item(name, orjson.dumps({"id": name, **message.model_dump(by_alias=True, exclude_none=True)})))
    head = _Head(msgspec.Raw(json_bytes(completion)), completion["model"], chat.metadata or {})
    return msgspec.json.encode(head), items


async def list_chats(request: web.Request) -> web.Response:
    """GET /v1/chat/completions."""
    page, model = Page(request, is_newest_first=False), request.query.get("model")
    wanted = {name[9:-1]: value for name, value in request.query.items() if name.startswith("metadata[")}
    after: str = page.after
    found = list[Stored]()
    while len(found) <= page.limit:
        read = await stored(
            store_of(request).page(
                owner_of(request), Kind.CHAT, after=after, limit=_SCANNED, is_newest_first=page.is_newest_first
            )
        )
        if read is None:
            raise not_stored("after", page.after)
        for each in read:
            head = _head(each)
            if model in (None, head.model) and wanted.items() <= head.metadata.items():
                found.append(each)
        if len(read) < _SCANNED:
            break
        after = read[-1].id
    return json_response(page.listed(found, [each.id for each in found], [_chat(each) for each in found]))


async def get_chat(request: web.Request) -> web.Response:
    """GET /v1/chat/completions/{completion_id}."""
    return json_response(_chat(await _found(request)))


async def update_chat(request: web.Request) -> web.Response:
    """POST /v1/chat/completions/{completion_id}."""
    found = await _found(request)
    body, ignored = await read_body(request, MetadataRequest)
    refuse_ignored(request.app, ignored)
    head = msgspec.json.encode(msgspec.structs.replace(_head(found), metadata=body.metadata))
    await stored(store_of(request).replace(owner_of(request), found.id, head))
    return json_response(_chat(await _found(request)), headers=ignored_header(ignored))


async def delete_chat(request: web.Request) -> web.Response:
    """DELETE /v1/chat/completions/{completion_id}."""
    identity = id_in(request, "completion_id")
    await delete_stored(request, Kind.CHAT, "completion_id", identity)
    return json_response({"id": identity, "object": "chat.completion.deleted", "deleted": True})


async def list_messages(request: web.Request) -> web.Response:
    """GET /v1/chat/completions/{completion_id}/messages."""
    found, page = await _found(request), Page(request, is_newest_first=False)
    return json_response(await listed_items(request, found.id, page))


async def _found(request: web.Request) -> Stored:
    return await find_stored(request, Kind.CHAT, "completion_id", id_in(request, "completion_id"))


def _head(found: Stored) -> _Head:
    return msgspec.json.decode(found.head, type=_Head)


def _chat(found: Stored) -> dict[str, Any]:
    head = _head(found)
    return {**orjson.loads(bytes(head.completion)), "metadata": head.metadata}
