"""One client's connection: how long it may take to say what it wants and to read what it gets, and what is no HTTP."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

from aiohttp import HttpVersion10, HttpVersion11, hdrs, web
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import _ErrInfo

from frontend.connections.refusals import SERVER, refusal
from frontend.errors import APIError, RequestTimeout
from frontend.request_context import json_response
from frontend.settings import Settings

LINGERING_S = 3.0  # that what a refused client goes on sending is read and dropped

logger = logging.getLogger(__name__)

# The kernel's part of what was not sent yet; more stays with us, where it is watched.
_MAX_UNSENT_BYTES = 64 * 1024
# A peer that is silent is asked whether it is there: after half a minute, three times.
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_COUNT = 30, 10, 3


async def leave_packed_body(request: web.Request, response: web.StreamResponse) -> None:
    """Drop the rest of a compressed body without unpacking it; aiohttp would unpack it and throw it away."""
    if hdrs.CONTENT_ENCODING in request.headers and not request.content.is_eof():
        assert isinstance(request.protocol, Connection)
        request.protocol.drop_input()
        response.force_close()
        response.headers[hdrs.CONNECTION] = "close"  # aiohttp has written this header before


class Connection(web.RequestHandler):
    """aiohttp's side of a connection, with deadlines that it lacks, and its refusals in our words.

    Args:
        server: which it belongs to.
        settings: its limits.
        options: aiohttp's own.
    """

    __slots__ = (
        "_head_timer",
        "_is_head_begun",
        "_is_refused",
        "_num_unread_bytes",
        "_peer",
        "_reader_timer",
        "_settings",
    )

    def __init__(self, server: web.Server, *, settings: Settings, **options: Any) -> None:
        super().__init__(server, **options)
        self._settings = settings
        self._peer: asyncio.Transport | None = None  # until the connection is lost; aiohttp forgets its own earlier
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_head_begun = False
        self._is_refused = False
        self._reader_timer: asyncio.TimerHandle | None = None
        self._num_unread_bytes = 0  # in our buffer, at the last look

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for the first request."""
        self._peer = cast(asyncio.Transport, transport)  # uvloop's is of no common class
        _set_socket_options(transport.get_extra_info("socket"), self._settings.stalled_reader_s)
        self._head_timer = self._loop.call_later(self._settings.header_timeout_s, self._refuse_slow_head)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop every watch."""
        self._stop_head_timer()
        self._stop_reader_timer()
        self._peer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Note whether the head of a request is under way: it has a deadline of its own."""
        if self._is_refused:
            return  # but read: the kernel resets a connection that is closed with something unread
        super().data_received(data)
        if self._messages:
            self._refuse_other_versions()
        is_idle = self._waiter is not None and not self._waiter.done()
        if not is_idle:
            if self._head_timer is not None:
                self._stop_head_timer()
        elif data:
            self._is_head_begun = True
            if self._head_timer is None:
                self._head_timer = self._loop.call_later(self._settings.header_timeout_s, self._refuse_slow_head)

    def drop_input(self) -> None:
        """Read what else comes, and throw it away."""
        self._is_refused = True

    def _refuse_other_versions(self) -> None:
        """Have requests of other versions refused in their turn: aiohttp would answer them in their version."""
        for place, (message, _) in enumerate(self._messages):
            if not isinstance(message, _ErrInfo) and message.version not in (HttpVersion10, HttpVersion11):
                error = BadHttpMessage("another version")
                self._messages[place] = _ErrInfo(error.code, error, error.message), EMPTY_PAYLOAD

    def log_exception(self, *args: Any, **options: Any) -> None:
        """Log what aiohttp did not foresee; a body that does not decode is the client's affair, and was answered."""
        if not isinstance(options.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **options)

    def pause_writing(self) -> None:
        """Begin to watch a reader that is behind."""
        super().pause_writing()
        assert self._peer is not None
        self._num_unread_bytes = self._peer.get_write_buffer_size()
        self._reader_timer = self._loop.call_later(self._settings.stalled_reader_s, self._cut_stalled_reader)

    def resume_writing(self) -> None:
        """Leave a reader alone that has caught up."""
        self._stop_reader_timer()
        super().resume_writing()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer to what is no HTTP, and close the connection behind it."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun")
        error = refusal(exc, self._settings)
        request_id = _log_refusal(error, exc)
        response = json_response(
            error.envelope(), status=error.status, headers={"x-request-id": request_id, "Server": SERVER}
        )
        response.force_close()
        return response

    def _make_error_handler(self, err_info: Any) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
        answer = super()._make_error_handler(err_info)

        async def answer_and_linger(request: web.BaseRequest) -> web.StreamResponse:
            response = await answer(request)
            await response.prepare(request)
            await response.write_eof()
            await self._linger()
            return response

        return answer_and_linger

    async def _linger(self) -> None:
        """Let the client read why it is refused: until it hangs up, which cancels this, or its time is over."""
        self._is_refused = True
        if self._peer is not None and self._peer.can_write_eof():
            self._peer.write_eof()
        await asyncio.sleep(LINGERING_S)

    def _refuse_slow_head(self) -> None:
        """Close a connection on which no request came in time; say so if one had begun."""
        self._head_timer = None
        if self._waiter is None or self._waiter.done() or self._peer is None:
            return
        if self._is_head_begun:
            limit_s = self._settings.header_timeout_s
            error = RequestTimeout(f"The head of the request took longer than {limit_s:g} seconds")
            self._peer.write(_raw_answer(error, _log_refusal(error, None)))
        self.force_close()

    def _cut_stalled_reader(self) -> None:
        """Abort the connection if its reader has read nothing since the last look. Its handler is cancelled with it."""
        self._reader_timer = None
        if self._peer is None:
            return
        num_unread_bytes = self._peer.get_write_buffer_size()
        if num_unread_bytes >= self._num_unread_bytes:
            logger.info("cut a reader that stalls: %d bytes unread", num_unread_bytes)
            _forget_unread(self._peer.get_extra_info("socket"))
            self._peer.abort()
            return
        self._num_unread_bytes = num_unread_bytes
        self._reader_timer = self._loop.call_later(self._settings.stalled_reader_s, self._cut_stalled_reader)

    def _stop_head_timer(self) -> None:
        self._is_head_begun = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None


def _set_socket_options(sock: socket.socket | None, stalled_reader_s: float) -> None:
    """Have the kernel give up a peer that is gone, or that does not read what the kernel holds for it."""
    options = {
        socket.TCP_KEEPIDLE: _KEEPALIVE_IDLE_S,
        socket.TCP_KEEPINTVL: _KEEPALIVE_INTERVAL_S,
        socket.TCP_KEEPCNT: _KEEPALIVE_COUNT,
        socket.TCP_NOTSENT_LOWAT: _MAX_UNSENT_BYTES,
        socket.TCP_USER_TIMEOUT: int(2 * stalled_reader_s * 1000),  # not before us: it lets nobody know
    }
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    for option, value in options.items():
        with suppress(OSError):  # the peer may have gone already
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _forget_unread(sock: socket.socket | None) -> None:
    """Have the kernel reset the connection when it is closed, instead of keeping what nobody reads."""
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _log_refusal(error: APIError, exc: BaseException | None) -> str:
    """Write one line, as for every request; return the name that it gives to this one."""
    request_id = f"req_{secrets.token_hex(16)}"
    if error.status >= 500:
        logger.error("unexpected exception while serving request_id=%s", request_id, exc_info=exc)
    logger.info("refused request_id=%s status=%d error=%s", request_id, error.status, error.code)
    return request_id


def _raw_answer(error: APIError, request_id: str) -> bytes:
    """Return an answer to a request that there is not yet: nothing of aiohttp's could send it."""
    body = json_response(error.envelope()).body
    assert isinstance(body, bytes)
    lines = (
        f"HTTP/1.1 {error.status} Request Timeout",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"x-request-id: {request_id}",
        "Connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + body
