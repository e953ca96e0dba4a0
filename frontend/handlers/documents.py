"""Documents in chats: read into texts and pictures before the chat becomes a prompt."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from aiohttp import web

from frontend.documents.document import Bounds, Picture, Unreadable, printable
from frontend.documents.process import read_in_process
from frontend.errors import InvalidRequest, Overloaded, UnsupportedValue, shown
from frontend.handlers.bodies import work_on_body
from frontend.handlers.call import Call
from frontend.handlers.fetching import FETCHER, may_fetch, room_beside_body
from frontend.protocol.chat import ChatCompletionRequest, ChatMessage, ContentPart, FilePart, ImageUrl
from frontend.protocol.tokenization import TokenizeRequest
from frontend.request_context import LIMITS, SETTINGS, sender_of
from frontend.translate.data_uris import file_from_data_uri
from model_repository.capabilities import Capability
from model_repository.contract.request import IMAGE_MARKER, MAX_IMAGES

MAX_DOCUMENTS = 16  # of a request
_MAX_NAME = 128  # characters


class DocumentTurns:
    """One request of each sender has its documents fetched and read at a time, and one document is read at a time."""

    def __init__(self) -> None:
        self._senders: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.reader = asyncio.Lock()

    def of_sender(self, sender: str) -> asyncio.Lock:
        """Return the lock of a sender's requests."""
        return self._senders.setdefault(sender, asyncio.Lock())


DOCUMENT_TURNS = web.AppKey("document_turns", DocumentTurns)


async def with_documents[Body: (ChatCompletionRequest, TokenizeRequest)](call: Call[Body]) -> Call[Body]:
    """Return a call with texts and pictures in place of documents.

    Raises:
        InvalidRequest: a document cannot be read or fetched.
        Overloaded: the memory for large bodies stays full, or the machine is too busy.
    """
    messages = call.body.messages or []
    num_documents = sum(part.file is not None for message in messages for part in message.content or ())
    if not num_documents:
        return call
    if num_documents > MAX_DOCUMENTS:
        rule = f"{num_documents} documents: a request may have {MAX_DOCUMENTS}"
        raise InvalidRequest(f"messages: {rule}", param="messages")
    async with call.app[DOCUMENT_TURNS].of_sender(sender_of(call.request)):
        num_images = sum(part.image_url is not None for message in messages for part in message.content or ())
        reader = _Reader(call, max(MAX_IMAGES - num_images, 0))
        read = [await reader.read(index, message) for index, message in enumerate(messages)]
    body = call.body.model_copy(update={"messages": read})
    call.places.add(body)
    return replace(call, body=body)


class _Reader:
    """Reads the documents of one call.

    Args:
        max_pictures: of pages, if the model reads images.
    """

    def __init__(self, call: Call[Any], max_pictures: int) -> None:
        self._call = call
        self._reads_pictures = Capability.IMAGES in call.name.model.parameters.capabilities
        self._num_pictures = max_pictures if self._reads_pictures else 0
        self._has_fetched = False

    async def read(self, index: int, message: ChatMessage) -> ChatMessage:
        """Return a message with its documents as texts and pictures. These parts get the places of their documents."""
        if not any(part.file for part in message.content or ()):
            return message
        places = self._call.places
        parts: list[ContentPart] = []
        theirs: list[str] = []
        for number, part in enumerate(message.content or ()):
            place = f"messages[{index}].content[{number}]"
            read = [part]
            if part.file is not None:
                place += ".file.file_data"
                read = list(_with_mark(await self._parts(part.file, place), part))
            parts += read
            theirs += [places.of(place)] * len(read)
        for number, place in enumerate(theirs):
            places[f"messages[{index}].content[{number}]"] = place
        return message.model_copy(update={"content": parts})

    async def _parts(self, file: FilePart, place: str) -> list[ContentPart]:
        request, app = self._call.request, self._call.app
        content = await self._content(file.file_data or "", place)
        name = printable(file.filename or _name_in_url(file.file_data or "") or "document", _MAX_NAME)
        try:
            async with room_beside_body(request) as room:
                max_pages, max_chars = app[SETTINGS].max_document_pages, room.num_left
                bounds = Bounds(max_pages, max_chars, self._reads_pictures, self._num_pictures)
                async with app[DOCUMENT_TURNS].reader:
                    read = await read_in_process(content, name, bounds)
                room.use(sum(map(_size, read)))
            parts = await work_on_body(request, lambda: list(map(_part, read)))
        except Unreadable as exc:
            raise InvalidRequest(f"{place}: {exc}", param=place) from exc
        except TimeoutError as exc:
            raise Overloaded("The server is too busy to read the document.") from exc
        self._num_pictures -= sum(isinstance(each, Picture) for each in read)
        return parts

    async def _content(self, data: str, place: str) -> bytes:
        """Return the bytes of a document, which are fetched if it is a URL. Each such request counts as one more."""
        request, app = self._call.request, self._call.app
        if not data.startswith(("http:", "https:")):
            return await work_on_body(request, file_from_data_uri, data, place)
        if not may_fetch(app):
            raise UnsupportedValue(
                f"{place}={shown(data)}: this server fetches no documents (--fetch-host)", param=place
            )
        if not self._has_fetched and (limits := app.get(LIMITS)) is not None:
            # Its text must be known before the request is admitted: without this, fetches would cost nothing.
            await limits.count_request(request, self._call.name.model.id)
        self._has_fetched = True
        async with room_beside_body(request) as room:
            content = await app[FETCHER].fetch(data, place, room.num_left)
            room.use(len(content))
        return content


def _part(read: str | Picture) -> ContentPart:
    if isinstance(read, str):  # the client cannot change a document with the marker of an image
        return ContentPart.made({"type": "text", "text": read.replace(IMAGE_MARKER, f"{IMAGE_MARKER[:-1]} >")})
    url = "data:image/png;base64," + base64.b64encode(read.png).decode()
    return ContentPart.made({"type": "image_url", "image_url": ImageUrl.made({"url": url})})


def _size(read: str | Picture) -> int:
    """Return the characters that a text takes, or a picture in base64."""
    return len(read) if isinstance(read, str) else len(read.png) * 4 // 3


def _with_mark(parts: list[ContentPart], of: ContentPart) -> Iterator[ContentPart]:
    """Yield parts; the last one has the document's mark for the prompt cache."""
    yield from parts[:-1]
    yield parts[-1].model_copy(update={"prompt_cache_breakpoint": of.prompt_cache_breakpoint})


def _name_in_url(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2] if url.startswith(("http:", "https:")) else ""
