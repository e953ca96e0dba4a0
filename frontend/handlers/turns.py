"""Turns of stored conversations: the items before a request, and the answer that is stored after it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson
from aiohttp import web
from msgspec import Struct

from frontend.errors import InvalidRequest, StoreFailed, shown
from frontend.handlers.answer_log import LOG_PREFIX
from frontend.handlers.bodies import MAX_STORED, reserve, work_on_body
from frontend.handlers.stored import STORE, is_id, not_stored, owner_of, stored
from frontend.json_pieces import json_bytes
from frontend.protocol.responses import (
    CALLS,
    COMPACTION,
    COMPACTION_TRIGGER,
    REFERENCE,
    InputTokensRequest,
    ResponseItem,
    ResponsesRequest,
)
from frontend.request_context import SETTINGS
from frontend.store.types import Append, Change, Create, Item, Kind, Store, Stored
from frontend.translate.responses_chat import PlacedItem, input_items

MAX_ITEMS = 2048
_OTHER_ITEMS = (LOG_PREFIX, "chatcmpl-")  # of what is no conversation of items
_NUM_ANCESTORS = 64  # in a head: a chain of 1,000 answers is found in 16 reads
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc", "compaction": "cmp"}


class ResponseHead(Struct, frozen=True):
    """The head of a stored answer. Its body is the answer without its output."""

    num_input: int  # items of the input; those of the output follow
    ancestors: tuple[str, ...] = ()  # the ids of the answers before it, the last one first
    conversation: str | None = None
    is_background: bool = False
    is_running: bool = False
    is_cancelled: bool = False  # the client has stopped it
    is_compacted: bool = False  # its items have a compaction: no prompt needs the answers before it


@dataclass(frozen=True, slots=True)
class Turn:
    """The stored side of one request.

    Args:
        store: None: the answer is not stored.
        history: the items before the input.
        place: the field that names them.
        input: that of the request, with items in place of references.
        ancestors: see ResponseHead.
        known_ids: of items that are in the input, and in the conversation already.
    """

    owner: str
    store: Store | None
    history: Sequence[ResponseItem]
    place: str
    input: Sequence[ResponseItem]
    ancestors: Sequence[str]
    conversation: str | None
    known_ids: Collection[str]

    def items(self) -> list[PlacedItem]:
        """Return the whole conversation, with the places of its items."""
        return [*((self.place, item) for item in self.history), *input_items(self.input)]

    def last_of_user(self) -> list[PlacedItem]:
        """Return the conversation from the last message of the user on."""
        items = self.items()
        first = max((index for index, (_, item) in enumerate(items) if item.role == "user"), default=len(items))
        return items[first:]

    async def keep(self, response: Mapping[str, Any]) -> bool:
        """Store a complete answer; return whether it is stored."""
        if self.store is None:
            return False
        changes = await asyncio.to_thread(self._changes, response)  # log probabilities may have many megabytes
        try:
            await stored(self.store.write(self.owner, *changes))
        except StoreFailed:
            return False
        return True

    def _changes(self, response: Mapping[str, Any]) -> list[Change]:
        given, made = self.given(), made_items(response)
        head = msgspec.json.encode(self.head(given, made))
        changes: list[Change] = [Create(Kind.RESPONSE, response["id"], head, given + made, written(response))]
        if self.conversation is not None:  # one that was deleted in the meantime gets nothing
            changes.append(Append(self.conversation, given + made))
        return changes

    def given(self) -> list[Item]:
        """Return the input as it is stored."""
        return as_items(self.input, self.known_ids)

    def head(self, given: Sequence[Item], made: Sequence[Item] = (), *, is_running: bool = False) -> ResponseHead:
        """Return the head of an answer.

        Args:
            given: see `given`.
            made: its output so far.
            is_running: in the background.
        """
        return ResponseHead(
            len(given),
            tuple(self.ancestors[:_NUM_ANCESTORS]),
            self.conversation,
            is_background=is_running,
            is_running=is_running,
            is_compacted=has_compaction([*given, *made]),
        )


def written(response: Mapping[str, Any]) -> bytes:
    """Return the body of a stored answer."""
    return orjson.dumps({**response, "output": []})


def made_items(response: Mapping[str, Any]) -> list[Item]:
    """Return the output of an answer in its stored form."""
    return [Item(item["id"], json_bytes(item)) for item in response["output"]]


async def turn_of(request: web.Request, body: InputTokensRequest) -> Turn:
    """Find the conversation that a request continues, and the items that it refers to.

    Raises:
        NotStored: an answer or the conversation is not there, or only in part.
        InvalidRequest: an item is not there, or the conversation is too long.
    """
    store, owner = request.app.get(STORE), owner_of(request)
    previous, conversation = body.previous_response_id, body.conversation
    if store is None:
        for name, given in (("previous_response_id", previous), ("conversation", conversation)):
            if given is not None:
                rule = "this server stores nothing (--store none): send input with the whole conversation"
                raise InvalidRequest(f"{name}: {rule}", param=name, code="unsupported_value")
    ancestors: Sequence[str] = ()
    items: Sequence[Item] = ()
    num_bytes = 0
    place = "conversation" if conversation is not None else "previous_response_id"
    if store is not None and previous is not None:
        chain = await _chain(store, owner, previous)
        ancestors = [each.id for each in chain]
        num_bytes = sum(each.num_item_bytes for each in chain)
        _check_number(body, place, sum(each.num_items for each in chain))
        _check_size(request, place, num_bytes)
        await reserve(request, num_bytes)
        of_all = await stored(store.items_of(owner, ancestors))
        if any(len(of_all[each.id]) != each.num_items for each in chain):  # deleted in the meantime
            raise not_stored(place, previous, "previous_response_not_found")
        items = [item for identity in reversed(ancestors) for item in of_all[identity]]
    elif store is not None and conversation is not None:
        items = await _items_since_compaction(request, store, body, conversation.id)
        num_bytes = sum(len(item.value) for item in items)
    references = [each for each in body.references() if is_id(each) and not each.startswith(_OTHER_ITEMS)]
    named: Mapping[str, bytes] = {}
    if store is not None and references:
        sizes = await stored(store.item_sizes(owner, references))
        _check_size(request, "input", num_bytes + sum(sizes.get(each, 0) for each in references))
        await reserve(request, sum(sizes.values()))
        named = await stored(store.find_items(owner, list(sizes)))
    history = await work_on_body(request, _parsed, [item.value for item in items])
    referred = dict(zip(named, await work_on_body(request, _parsed, named.values()), strict=True))
    resolved = list(_resolved(body.input, referred))
    is_kept = isinstance(body, ResponsesRequest) and body.store is not False
    known_ids: Collection[str] = ()
    if store is not None and is_kept and conversation is not None:
        known_ids = await known_ids_of(store, owner, conversation.id, resolved)
    return Turn(
        owner,
        store if is_kept else None,
        history,
        place,
        resolved,
        ancestors,
        None if conversation is None else conversation.id,
        known_ids,
    )


async def _conversation(store: Store, owner: str, identity: str) -> Stored:
    found = await stored(store.read(owner, Kind.CONVERSATION, [identity])) if is_id(identity) else {}
    if not found:
        raise not_stored("conversation", identity)
    return found[identity]


async def _chain(store: Store, owner: str, identity: str) -> list[Stored]:
    """Return an answer with the answers before it, up to a compaction, the last one first.

    Raises:
        NotStored: one of them is not there.
    """
    chain, unread = list[Stored](), [identity]
    while unread:
        found = await stored(store.read(owner, Kind.RESPONSE, unread)) if is_id(identity) else {}
        ancestors: Sequence[str] = ()
        for each in unread:
            if each not in found:
                raise not_stored("previous_response_id", identity, "previous_response_not_found")
            head = msgspec.json.decode(found[each].head, type=ResponseHead)
            if head.is_running:
                rule = "the answer is not complete yet: wait until its status is no longer queued or in_progress"
                raise InvalidRequest(f"previous_response_id={shown(identity)}: {rule}", param="previous_response_id")
            chain.append(found[each])
            if head.is_compacted:
                return chain
            ancestors = head.ancestors
        unread = list(ancestors)
    return chain


async def _items_since_compaction(
    request: web.Request, store: Store, body: InputTokensRequest, identity: str
) -> list[Item]:
    """Return the items of a conversation from its last compaction on.

    Raises:
        NotStored: it is not there.
        InvalidRequest: it is too long.
    """
    owner, limit = owner_of(request), MAX_STORED * request.app[SETTINGS].max_body_bytes
    found = await _conversation(store, owner, identity)
    await reserve(request, min(found.num_item_bytes, limit))
    page = await stored(store.items(owner, identity, limit=MAX_ITEMS, max_bytes=limit, is_newest_first=True))
    await _conversation(store, owner, identity)  # it is still there
    assert page is not None, "it has no `after`"
    num_items = await work_on_body(request, _num_since_compaction, page.items)
    if num_items is None and page.has_more:
        _check_number(body, "conversation", found.num_items)
        _check_size(request, "conversation", found.num_item_bytes)
    newest = page.items[:num_items]
    _check_number(body, "conversation", len(newest))
    return list(newest[::-1])


def _num_since_compaction(newest: Sequence[Item]) -> int | None:
    return next((number for number, item in enumerate(newest, 1) if has_compaction([item])), None)


def has_compaction(items: Iterable[Item]) -> bool:
    """Whether stored items have a compaction."""
    mark = b'"type":"compaction"'  # most items are not parsed
    return any(mark in item.value and orjson.loads(item.value)["type"] == COMPACTION for item in items)


def _check_number(body: InputTokensRequest, place: str, num_items: int) -> None:
    """Check the number of items of a conversation.

    Raises:
        InvalidRequest: there are too many.
    """
    if num_items + len(body.input) > MAX_ITEMS:
        rule = f"has {num_items} items, and with the input {num_items + len(body.input)}: at most {MAX_ITEMS}"
        raise InvalidRequest(f"{place}: {rule}", param=place)


def _check_size(request: web.Request, place: str, num_bytes: int) -> None:
    """Check the size of a conversation before it is read.

    Raises:
        InvalidRequest: it is too large.
    """
    limit = MAX_STORED * request.app[SETTINGS].max_body_bytes
    if num_bytes > limit:
        raise InvalidRequest(f"{place}: the conversation has {num_bytes:,} bytes: at most {limit:,}", param=place)


def _parsed(values: Iterable[bytes]) -> list[ResponseItem]:
    return [ResponseItem.model_validate(orjson.loads(value)) for value in values]


def _resolved(items: Sequence[ResponseItem], referred: Mapping[str, ResponseItem]) -> Iterable[ResponseItem]:
    """Yield items with those that references name.

    Raises:
        InvalidRequest: one is not there. Without thinking, and without a text before a call, a conversation goes on.
    """
    next_types = [*(item.type for item in items[1:]), ""]
    for index, (item, next_type) in enumerate(zip(items, next_types, strict=True)):
        if item.type != REFERENCE:
            yield item
        elif (found := referred.get(item.id or "")) is not None:
            yield found
        elif next_type not in CALLS and not (item.id or "").startswith("rs_"):
            rule = "no item of this id is stored: send the item itself (the AI SDK does with `store: false`)"
            raise InvalidRequest(f"input[{index}].id={item.id}: {rule}", param=f"input[{index}].id")


def as_items(items: Iterable[ResponseItem], known_ids: Collection[str] = ()) -> list[Item]:
    """Return items of the input as they are stored; those that are skipped are left out.

    Each item has an id, and a new one if its id is known or that of an item before it: pages begin behind an id.
    """
    found = dict[str, Item]()
    for item in items:
        if not item.is_skipped and item.type != COMPACTION_TRIGGER:
            fields = {"status": "completed", **item.model_dump(by_alias=True, exclude_none=True)}
            identity = fields.get("id", "")
            if not is_id(identity) or identity in known_ids or identity in found:
                identity = fields["id"] = f"{_PREFIXES.get(item.type, 'item')}_{secrets.token_hex(16)}"
            found[identity] = Item(identity, orjson.dumps(fields))
    return list(found.values())


async def known_ids_of(store: Store, owner: str, conversation: str, items: Iterable[ResponseItem]) -> Collection[str]:
    """Return the ids that items have, and that a conversation has already."""
    ids = [item.id for item in items if item.id is not None and is_id(item.id)]
    return await stored(store.item_sizes(owner, ids, conversation))
