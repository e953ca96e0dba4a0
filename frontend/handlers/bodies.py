"""Request bodies: JSON, read into bounded memory; the work on costly ones is off the event loop."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from aiohttp import HttpVersion11, hdrs, web

from frontend.errors import (
    CONTENT_CODINGS,
    RequestTimeout,
    UnsupportedCoding,
    UnsupportedMediaType,
    shown,
)
from frontend.handlers.shared_memory import SharedMemory
from frontend.protocol.body import Body
from frontend.protocol.reading import parse
from frontend.request_context import FACTS, SETTINGS, lock_of_sender, sender_of

BODY_TIMEOUT_S = 60.0  # time for a body, from the end of its head
LARGE_BYTES = 65_536  # more than this counts as memory
_MANY_VALUES = 500  # commas and colons: the work on 500 values takes some milliseconds
MAX_STORED = 4  # bodies of the largest size: one request may read their bytes from the store
MAX_LARGEST = 8  # bodies of the largest size in memory at a time; each costs up to eight times its size
_JSON = re.compile(r"application/([\w.+-]+\+)?json")


class LargeBodies(SharedMemory):
    """Bounds the memory of bodies above LARGE_BYTES until their requests end, and works on costly ones in one thread.

    Args:
        max_bytes: of all large bodies together. Reading of a body pauses until it fits.
        kept_bytes: of these, for senders without a large body: one with slow requests would otherwise hold all.
    """

    def __init__(self, max_bytes: int, kept_bytes: int) -> None:
        super().__init__(max_bytes, kept_bytes, "large bodies")
        # One thread: a parser holds Python's lock, and the event loop waits for it.
        self._thread = ThreadPoolExecutor(1, "large-bodies")

    async def work[*Arguments, Result](
        self, lock: asyncio.Lock, function: Callable[[*Arguments], Result], *arguments: *Arguments
    ) -> Result:
        """Call a function in the thread, under the sender's lock: it waits for one piece of each other sender."""
        async with lock:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


LARGE_BODIES: web.AppKey[LargeBodies] = web.AppKey("large_bodies")


async def read_body[Request: Body](request: web.Request, model: type[Request]) -> tuple[Request, list[str]]:
    """Return the checked body, and the places of its fields that every model ignores.

    Raises:
        APIError: the body breaks a rule.
    """
    settings = request.app[SETTINGS]
    require_json(request)
    coding = request.headers.get(hdrs.CONTENT_ENCODING, "")
    if coding.lower() not in ("", "identity", *CONTENT_CODINGS):
        raise UnsupportedCoding(coding)
    size = request.content_length
    if size is not None and size > settings.max_body_bytes:
        raise web.HTTPRequestEntityTooLarge(settings.max_body_bytes, size)
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue" and request.version == HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # counts bytes of the answer only
    if request.content.is_eof():  # it has come with its head
        content = await _content(request, settings.max_body_bytes)
    else:
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                content = await _content(request, settings.max_body_bytes)
        except TimeoutError as exc:
            raise RequestTimeout(f"The body took longer than {BODY_TIMEOUT_S:g} seconds") from exc
    facts = request[FACTS]
    facts.num_body_bytes = len(content)
    # A count of what separates values: a body of few bytes may have many of them.
    facts.is_costly = len(content) > LARGE_BYTES or content.count(b",") + content.count(b":") > _MANY_VALUES
    return await work_on_body(request, parse, model, content, settings)


async def work_on_body[*Arguments, Result](
    request: web.Request, function: Callable[[*Arguments], Result], *arguments: *Arguments
) -> Result:
    """Return the result of work that grows with a body: off the event loop if the body is costly."""
    if not request[FACTS].is_costly:
        return function(*arguments)
    return await request.app[LARGE_BODIES].work(lock_of_sender(request), function, *arguments)


async def reserve(request: web.Request, num_bytes: int) -> None:
    """Reserve memory for stored bytes before they are read, as for those of a body.

    Raises:
        Overloaded: the memory stays full.
    """
    if num_bytes <= LARGE_BYTES:
        return
    memory, facts, sender = request.app[LARGE_BODIES], request[FACTS], sender_of(request)
    num_bytes = min(num_bytes, MAX_STORED * request.app[SETTINGS].max_body_bytes)  # log probabilities may have more
    if facts.num_reserved_bytes:
        memory.grow(sender, num_bytes)
    else:
        await memory.reserve(sender, num_bytes)
    facts.num_reserved_bytes += num_bytes
    facts.is_costly = True


async def expect_later(request: web.Request) -> None:
    """Do nothing: `read_body` sends `100 Continue` once the headers are accepted."""


def require_json(request: web.Request) -> None:
    """Check that Content-Type is JSON. A browser sends JSON to another origin only with the server's consent.

    Raises:
        UnsupportedMediaType: the header is missing, or has another media type.
    """
    given = request.headers.get(hdrs.CONTENT_TYPE)
    if given is None or not _JSON.fullmatch(request.content_type):
        found = "missing" if given is None else shown(given)
        raise UnsupportedMediaType(f"Content-Type: {found}: send JSON with -H 'Content-Type: application/json'")


async def _content(request: web.Request, max_bytes: int) -> bytearray:
    """Return the bytes of a body. A large body reserves its memory first.

    Raises:
        Overloaded: the memory stays full.
        web.HTTPRequestEntityTooLarge: the body is too long.
    """
    content, facts = bytearray(), request[FACTS]
    while chunk := await request.content.readany():
        content += chunk
        if len(content) > max_bytes:
            raise web.HTTPRequestEntityTooLarge(max_bytes)
        if len(content) > LARGE_BYTES and not facts.num_reserved_bytes:
            is_packed = hdrs.CONTENT_ENCODING in request.headers
            num_bytes = max_bytes if is_packed else min(request.content_length or max_bytes, max_bytes)
            await request.app[LARGE_BODIES].reserve(sender_of(request), num_bytes)
            facts.num_reserved_bytes = num_bytes
    return content
