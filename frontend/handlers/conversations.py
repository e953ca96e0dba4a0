"""The endpoints of OpenAI's Conversations API."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
import orjson
from aiohttp import web
from msgspec import Struct

from frontend.errors import InvalidRequest
from frontend.handlers.bodies import read_body, reserve, work_on_body
from frontend.handlers.call import ignored_header, refuse_ignored
from frontend.handlers.stored import (
    Page,
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
from frontend.handlers.turns import as_items, known_ids_of
from frontend.protocol.conversations import ConversationRequest, MetadataRequest, NewItemsRequest
from frontend.request_context import SETTINGS, json_response
from frontend.store.types import Kind, Stored


class ConversationHead(Struct, frozen=True):
    """The head of a stored conversation."""

    metadata: dict[str, str] = {}


async def create_conversation(request: web.Request) -> web.Response:
    """POST /v1/conversations."""
    store = store_of(request)
    body, headers = await _body(request, ConversationRequest)
    identity, metadata = f"conv_{secrets.token_hex(16)}", body.metadata or {}
    head, items = (
        msgspec.json.encode(ConversationHead(metadata)),
        await work_on_body(request, as_items, body.items or ()),
    )
    await stored(store.create(owner_of(request), Kind.CONVERSATION, identity, head, items))
    return json_response(_conversation(await _found(request, identity)), headers=headers)


async def get_conversation(request: web.Request) -> web.Response:
    """GET /v1/conversations/{conversation_id}."""
    return json_response(_conversation(await _found(request, id_in(request, "conversation_id"))))


async def update_conversation(request: web.Request) -> web.Response:
    """POST /v1/conversations/{conversation_id}."""
    identity = id_in(request, "conversation_id")
    await _found(request, identity)
    body, headers = await _body(request, MetadataRequest)
    head = msgspec.json.encode(ConversationHead(body.metadata))
    await stored(store_of(request).replace(owner_of(request), identity, head))
    return json_response(_conversation(await _found(request, identity)), headers=headers)


async def delete_conversation(request: web.Request) -> web.Response:
    """DELETE /v1/conversations/{conversation_id}."""
    identity = id_in(request, "conversation_id")
    await delete_stored(request, Kind.CONVERSATION, "conversation_id", identity)
    return json_response({"id": identity, "object": "conversation.deleted", "deleted": True})


async def list_items(request: web.Request) -> web.Response:
    """GET /v1/conversations/{conversation_id}/items."""
    found, page = await _found(request, id_in(request, "conversation_id")), Page(request)
    return json_response(await listed_items(request, found, page))


async def add_items(request: web.Request) -> web.Response:
    """POST /v1/conversations/{conversation_id}/items."""
    identity = id_in(request, "conversation_id")
    await _found(request, identity)
    body, headers = await _body(request, NewItemsRequest)
    store, owner = store_of(request), owner_of(request)
    known_ids = await known_ids_of(store, owner, identity, body.items)
    if not (items := await work_on_body(request, as_items, body.items, known_ids)):
        raise InvalidRequest("items: has no item of a type that is stored", param="items")
    await stored(store.append(owner, identity, items))
    values = [orjson.Fragment(item.value) for item in items]
    return json_response(listed([item.id for item in items], values, has_more=False), headers=headers)


async def get_item(request: web.Request) -> web.Response:
    """GET /v1/conversations/{conversation_id}/items/{item_id}."""
    identity, item = id_in(request, "conversation_id"), id_in(request, "item_id")
    conversation = await _found(request, identity)
    await reserve(request, min(conversation.num_item_bytes, request.app[SETTINGS].max_body_bytes))
    found = await stored(store_of(request).find_items(owner_of(request), [item], identity))
    if not found:
        raise not_stored("item_id", item)
    return json_response(orjson.Fragment(found[item]))


async def delete_item(request: web.Request) -> web.Response:
    """DELETE /v1/conversations/{conversation_id}/items/{item_id}."""
    identity, item = id_in(request, "conversation_id"), id_in(request, "item_id")
    conversation = await _found(request, identity)
    if not await stored(store_of(request).remove_item(owner_of(request), identity, item)):
        raise not_stored("item_id", item)
    return json_response(_conversation(conversation))


async def _body[Body: (ConversationRequest, MetadataRequest, NewItemsRequest)](
    request: web.Request, model: type[Body]
) -> tuple[Body, dict[str, str]]:
    body, ignored = await read_body(request, model)
    refuse_ignored(request.app, ignored)
    return body, ignored_header(ignored)


async def _found(request: web.Request, identity: str) -> Stored:
    return await find_stored(request, Kind.CONVERSATION, "conversation_id", identity)


def _conversation(found: Stored) -> dict[str, Any]:
    head = msgspec.json.decode(found.head, type=ConversationHead)
    created = int(found.created_s)
    return {"id": found.id, "object": "conversation", "created_at": created, "metadata": head.metadata}
