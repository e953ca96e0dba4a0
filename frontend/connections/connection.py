"""One client's connection: deadlines for its head and its reading, and refusals of malformed HTTP."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import struct
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any, cast

from aiohttp import EMPTY_PAYLOAD, HttpVersion10, HttpVersion11, StreamReader, hdrs, web
from aiohttp.http_exceptions import BadHttpMessage

from frontend.connections.crowd import Crowd
from frontend.connections.refusals import SERVER, refusal
from frontend.errors import APIError, RequestTimeout
from frontend.request_context import json_response

HEADER_TIMEOUT_S = 10.0  # time for the head of a request
# A client that reads less in this time, although there is more to read, is cut off.
STALLED_READER_S = 30.0
MIN_BYTES_PER_S = 1024
LINGERING_S = 3.0  # time to read and drop the rest of a refused request

logger = logging.getLogger(__name__)

# Limit of unsent bytes in the kernel. The rest is in our buffer, which has a deadline.
_MAX_UNSENT_BYTES = 64 * 1024
# TCP keepalive: three checks of a silent peer, after half a minute.
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_COUNT = 30, 10, 3


async def leave_packed_body(request: web.Request, response: web.StreamResponse) -> None:
    """Drop the rest of a compressed body without unpacking it. aiohttp would unpack it first."""
    if hdrs.CONTENT_ENCODING in request.headers and not request.content.is_eof():
        assert isinstance(request.protocol, Connection)
        request.protocol.refuse_input()
        response.force_close()
        response.headers[hdrs.CONNECTION] = "close"  # aiohttp sets this header before the signal


def answer(
    handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], request: web.BaseRequest
) -> Awaitable[web.StreamResponse]:
    """Note a request at its connection, and have it handled.

    Raises:
        BadHttpMessage: the request has another version of HTTP, or a coding beside `chunked`.
    """
    assert isinstance(request.protocol, Connection)
    request.protocol.begin_answer(request.content)
    coding = request.headers.get(hdrs.TRANSFER_ENCODING, "chunked")
    if request.version not in (HttpVersion10, HttpVersion11) or coding.strip().lower() != "chunked":
        raise BadHttpMessage("another version or transfer coding")
    return handler(request)


class Connection(web.RequestHandler):
    """aiohttp's connection with more deadlines, and with errors of ours for malformed requests.

    Args:
        server: aiohttp's server, which has each request handled by `answer`.
        crowd: the connections of the port; this one joins it.
        loop: the event loop.
        options: aiohttp's options.
    """

    __slots__ = (
        "_body",
        "_crowd",
        "_event_loop",
        "_head_timer",
        "_is_answering",
        "_is_head_begun",
        "_is_refused",
        "_is_unfinished",
        "_num_requests",
        "_num_unread_bytes",
        "_peer",
        "_reader_timer",
        "waits_since_s",
    )

    def __init__(self, server: web.Server, crowd: Crowd, *, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        super().__init__(server, loop=loop, **options)
        self._event_loop = loop
        self._crowd = crowd
        self._num_requests = 0  # requests with a whole head
        self._body: StreamReader = EMPTY_PAYLOAD  # the last request's
        self._is_answering = False
        self.waits_since_s = 0.0  # the time of the last answer, or else of the connection
        self._is_unfinished = False  # a request has begun to arrive
        self._peer: asyncio.Transport | None = None  # None once the connection is lost; aiohttp drops its own earlier
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_head_begun = False
        self._is_refused = False
        self._reader_timer: asyncio.TimerHandle | None = None
        self._num_unread_bytes = 0  # size of our buffer when the timer last fired

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the deadline of the first head."""
        self._peer = cast(asyncio.Transport, transport)  # uvloop's is of no common class
        self.waits_since_s = self._event_loop.time()
        self._head_timer = self._event_loop.call_later(HEADER_TIMEOUT_S, self._refuse_slow_head)
        super().connection_made(transport)
        self._crowd.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Stop all timers."""
        self._crowd.remove(self)
        self._stop_head_timer()
        self._stop_reader_timer()
        self._peer = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass the bytes on; they are a part of a head, of the body that is being read, or pipelined."""
        if self._is_refused:
            return  # reading and dropping the bytes avoids a reset of the connection
        was_idle = not self._is_answering and self._body.is_eof()
        super().data_received(data)
        if was_idle and data and not self._is_head_begun:
            # A whole head has woken aiohttp's task, which runs before this.
            self._event_loop.call_soon(self._begin_head, self._num_requests)
        elif self._is_unfinished and not self._is_head_begun and self._body.is_eof():
            self._set_unfinished(False)

    def _begin_head(self, num_requests: int) -> None:
        """Set the deadline of a head, unless it is whole: then there are more requests than at its first bytes."""
        if self._num_requests == num_requests and self._peer is not None:
            self._is_head_begun = True
            self._set_unfinished(True)
            if self._head_timer is None:
                self._head_timer = self._event_loop.call_later(HEADER_TIMEOUT_S, self._refuse_slow_head)

    def begin_answer(self, body: StreamReader) -> None:
        """Clear the deadline of a request's head."""
        self._num_requests += 1
        self._is_answering = True
        self._body = body
        self._stop_head_timer()
        self._set_unfinished(not body.is_eof())

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the rest of an answer. After a refusal, wait until the client has read it."""
        if self._is_refused and not resp.prepared:
            self._write_raw(resp)
            finished = resp, True
        else:
            finished = await super().finish_response(request, resp, start_time)
        if self._is_refused:
            await self._linger()
        self._is_answering = False
        self.waits_since_s = self._event_loop.time()
        return finished

    @property
    def address(self) -> str:
        """The address of the client."""
        name = self.peername
        return name[0] if isinstance(name, tuple) else ""

    @property
    def is_waiting(self) -> bool:
        """Whether there is no complete request to answer."""
        return self._is_refused or self._is_unfinished or not self._is_answering

    @property
    def is_idle(self) -> bool:
        """Whether it waits, and the client has not begun a request since the last answer."""
        return self._head_timer is None and not self._is_unfinished and not self._is_answering

    def abort(self) -> None:
        """Close the connection at once."""
        if self._peer is not None:
            self._peer.abort()

    def refuse_input(self) -> None:
        """Read and drop all further bytes, and close the connection after the answer."""
        self._is_refused = True

    def log_exception(self, *args: Any, **options: Any) -> None:
        """Log unexpected exceptions, but no body that does not decode: that is the client's mistake."""
        if not isinstance(options.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **options)

    def pause_writing(self) -> None:
        """Set the deadline of a reader that is behind."""
        super().pause_writing()
        assert self._peer is not None
        self._num_unread_bytes = self._peer.get_write_buffer_size()
        self._reader_timer = self._event_loop.call_later(STALLED_READER_S, self._cut_stalled_reader)

    def resume_writing(self) -> None:
        """Clear the deadline of a reader that has caught up."""
        self._stop_reader_timer()
        super().resume_writing()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer to a malformed request, and close the connection after it."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun")
        self.begin_answer(EMPTY_PAYLOAD)
        self.refuse_input()
        return _refusal(refusal(exc), exc)

    async def _linger(self) -> None:
        """Keep the connection open so that the client can read the refusal. Its hang-up cancels this."""
        if self._peer is not None and self._peer.can_write_eof():
            self._peer.write_eof()
        await asyncio.sleep(LINGERING_S)
        self.force_close()

    def _refuse_slow_head(self) -> None:
        """Close a connection without a request in time; answer 408 if a request has begun."""
        self._head_timer = None
        if self._is_head_begun:
            error = RequestTimeout(f"The head of the request took longer than {HEADER_TIMEOUT_S:g} seconds")
            self._write_raw(_refusal(error, None))
        self.force_close()

    def _write_raw(self, response: web.StreamResponse) -> None:
        """Write an answer that aiohttp cannot give, or would give in the version of the request."""
        if self._peer is not None:
            assert isinstance(response, web.Response)
            assert isinstance(response.body, bytes)
            headers = "".join(f"{name}: {value}\r\n" for name, value in response.headers.items())
            head = (
                f"HTTP/1.1 {response.status} {response.reason}\r\n{headers}Content-Length: {len(response.body)}\r\n\r\n"
            )
            self._peer.write(head.encode() + response.body)

    def _cut_stalled_reader(self) -> None:
        """Abort the connection if its reader has read too little in the interval. This cancels the handler."""
        self._reader_timer = None
        if self._peer is None:
            return
        num_unread_bytes = self._peer.get_write_buffer_size()
        if num_unread_bytes > self._num_unread_bytes - MIN_BYTES_PER_S * STALLED_READER_S:
            logger.info("cut a reader that stalls: %d bytes unread", num_unread_bytes)
            _forget_unread(self._peer.get_extra_info("socket"))
            self._peer.abort()
            return
        self._num_unread_bytes = num_unread_bytes
        self._reader_timer = self._event_loop.call_later(STALLED_READER_S, self._cut_stalled_reader)

    def _set_unfinished(self, is_unfinished: bool) -> None:
        if is_unfinished is not self._is_unfinished:
            self._is_unfinished = is_unfinished
            (self._crowd.begin_request if is_unfinished else self._crowd.end_request)(self)

    def _stop_head_timer(self) -> None:
        self._is_head_begun = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_reader_timer(self) -> None:
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None


def drop_dead_peers(listener: socket.socket) -> None:
    """Have the kernel drop peers that are gone or do not read: each connection inherits the options of its listener."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        socket.TCP_KEEPIDLE: _KEEPALIVE_IDLE_S,
        socket.TCP_KEEPINTVL: _KEEPALIVE_INTERVAL_S,
        socket.TCP_KEEPCNT: _KEEPALIVE_COUNT,
        socket.TCP_NOTSENT_LOWAT: _MAX_UNSENT_BYTES,
        socket.TCP_USER_TIMEOUT: int(2 * STALLED_READER_S * 1000),  # later than our deadline, which cancels the handler
    }
    for option, value in options.items():
        listener.setsockopt(socket.IPPROTO_TCP, option, value)


def _forget_unread(sock: socket.socket | None) -> None:
    """Have the kernel reset the connection at its close, and drop the unread bytes."""
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _refusal(error: APIError, exc: BaseException | None) -> web.Response:
    """Log a refused request with a new id; return the answer."""
    request_id = f"req_{secrets.token_hex(16)}"
    if error.status >= 500:
        logger.error("unexpected exception while serving request_id=%s", request_id, exc_info=exc)
    logger.info("refused request_id=%s status=%d error=%s", request_id, error.status, error.code)
    headers = {
        **error.headers,
        "x-request-id": request_id,
        "Connection": "close",
        "Date": formatdate(usegmt=True),
        "Server": SERVER,
    }
    return json_response(error.envelope(), status=error.status, headers=headers)
