"""Summaries that stand for conversations: the model writes them, and only this server reads them again."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence

from aiohttp import web

from frontend.errors import InvalidRequest
from frontend.handlers.stored import OF_SERVER, STORE, SUMMARIES_SECRET, stored
from frontend.protocol.responses import COMPACTION, ResponseItem
from frontend.request_context import SETTINGS
from frontend.store.types import Kind, Store
from frontend.translate.responses_chat import PlacedItem

INSTRUCTION = (
    "Write a summary of this conversation for yourself: you will go on with it, and see nothing of it but the "
    "summary. Keep goals and wishes of the user, decisions, facts, names, numbers, paths, code that matters, results "
    "of tools, and the next steps. Write the summary alone."
)
_INTRODUCTION = "Summary of the conversation so far:\n\n"
_DIGEST_BYTES = 32


class Summaries:
    """Signs and reads summaries. A store keeps the secret; without one, it ends with the key of the Tritons."""

    def __init__(self) -> None:
        self._secret: bytes | None = None

    async def secret(self, app: web.Application) -> bytes:
        """Return the secret.

        Raises:
            StoreFailed: the store does not answer.
        """
        if self._secret is None:
            store, key = app.get(STORE), app[SETTINGS].triton_key
            self._secret = hashlib.sha256(key.encode()).digest() if store is None else await _stored_secret(store)
        return self._secret


SUMMARIES = web.AppKey("summaries", Summaries)


async def _stored_secret(store: Store) -> bytes:
    if not (found := await stored(store.read(OF_SERVER, Kind.SECRET, [SUMMARIES_SECRET]))):
        secret = secrets.token_bytes(_DIGEST_BYTES)
        await stored(store.create(OF_SERVER, Kind.SECRET, SUMMARIES_SECRET, secret))  # or another process has made it
        found = await stored(store.read(OF_SERVER, Kind.SECRET, [SUMMARIES_SECRET]))
    return found[SUMMARIES_SECRET].head


def sealed(summary: str, secret: bytes) -> str:
    """Return a summary with its signature. It is not secret."""
    text = summary.encode()
    return base64.b64encode(hmac.digest(secret, text, "sha256") + text).decode()


def _opened(sealed_text: str, secret: bytes) -> str | None:
    """Return a summary; None: another server wrote it."""
    try:
        content = base64.b64decode(sealed_text, validate=True)
    except binascii.Error:
        return None
    digest, text = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return text.decode() if hmac.compare_digest(digest, hmac.digest(secret, text, "sha256")) else None


async def with_summaries(app: web.Application, items: Sequence[PlacedItem]) -> Sequence[PlacedItem]:
    """Return a conversation from its last summary on, with summaries as messages of the user.

    Raises:
        InvalidRequest: another server wrote a summary.
    """
    places = [index for index, (_, item) in enumerate(items) if item.type == COMPACTION]
    if not places:
        return items
    secret = await app[SUMMARIES].secret(app)
    return [(place, _read(place, item, secret)) for place, item in items[places[-1] :]]


def _read(place: str, item: ResponseItem, secret: bytes) -> ResponseItem:
    if item.type != COMPACTION:
        return item
    if (summary := _opened(item.encrypted_content or "", secret)) is None:
        where = f"{place}.encrypted_content"
        raise InvalidRequest(f"{where}: another server wrote it, or its store is gone", param=where)
    content = [{"type": "input_text", "text": _INTRODUCTION + summary}]
    return ResponseItem.model_validate({"type": "message", "role": "user", "content": content})
