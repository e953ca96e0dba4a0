from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from tests.benchmarks.http_stream import Exchange, HttpStream
from tests.benchmarks.sse_answers import chat_events, chunked_response

EVENTS = chat_events(["a", "bc"])
RESPONSE = chunked_response(EVENTS)


async def exchanged(feed: Callable[[HttpStream], None], stream: HttpStream | None = None) -> Exchange:
    """Send a request, feed its answer, and return the exchange."""
    if stream is None:
        stream = HttpStream(clock=lambda: 1.0)
        stream.connection_made(Mock(spec=asyncio.Transport))
    waiting = asyncio.ensure_future(stream.exchange(b"POST"))
    await asyncio.sleep(0)  # it sends
    feed(stream)
    return await waiting


@pytest.mark.parametrize("cut", range(1, len(RESPONSE)))
async def test_the_body_is_the_same_wherever_the_response_was_cut(cut: int) -> None:
    def feed(stream: HttpStream) -> None:
        stream.data_received(RESPONSE[:cut])
        stream.data_received(RESPONSE[cut:])

    exchange = await exchanged(feed)
    assert (exchange.status, exchange.error) == (200, "")
    assert b"".join(piece for _, piece in exchange.pieces) == b"".join(EVENTS)


async def test_a_connection_takes_one_request_after_the_other() -> None:
    stream = HttpStream(clock=lambda: 1.0)
    stream.connection_made(Mock(spec=asyncio.Transport))
    for _ in range(2):
        exchange = await exchanged(lambda stream: stream.data_received(RESPONSE), stream)
        assert b"".join(piece for _, piece in exchange.pieces) == b"".join(EVENTS)
        assert stream.is_open


async def test_a_server_that_ends_the_connection_is_not_asked_again_on_it() -> None:
    response = RESPONSE.replace(b"Transfer-Encoding", b"Connection: close\r\nTransfer-Encoding")
    stream = HttpStream(clock=lambda: 1.0)
    stream.connection_made(Mock(spec=asyncio.Transport))
    exchange = await exchanged(lambda stream: stream.data_received(response), stream)
    assert (exchange.error, stream.is_open) == ("", False)
    assert (await stream.exchange(b"POST")).error == "the connection was closed"


async def test_a_connection_that_breaks_ends_the_request_with_an_error() -> None:
    def feed(stream: HttpStream) -> None:
        stream.data_received(RESPONSE[:-10])
        stream.connection_lost(ConnectionResetError("reset"))

    assert "reset" in (await exchanged(feed)).error


async def test_what_is_not_http_ends_the_request_with_an_error() -> None:
    assert "not HTTP" in (await exchanged(lambda stream: stream.data_received(b"220 ready\r\n\r\n"))).error
