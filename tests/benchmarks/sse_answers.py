"""Streamed answers as a server sends them, for the tests of what reads them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def event(fields: dict[str, Any] | str) -> bytes:
    """Return one event; a text is sent as it is."""
    content = fields if isinstance(fields, str) else json.dumps(fields)
    return b"data: " + content.encode() + b"\n\n"


def chat_events(texts: Sequence[str], *, num_tokens: int | None = None, finish_reason: str = "length") -> list[bytes]:
    """Return the events of a chat completion with usage and an end."""
    usage = {"completion_tokens": len(texts) if num_tokens is None else num_tokens}
    chunks: list[dict[str, Any]] = [
        {"choices": [{"delta": {"content": text}, "finish_reason": None}], "usage": None} for text in texts
    ]
    last: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": finish_reason}]}
    return [event(each) for each in (*chunks, last, {"choices": [], "usage": usage})] + [event("[DONE]")]


def chunked_response(events: Sequence[bytes]) -> bytes:
    """Return the bytes of an HTTP response with each event in a chunk of its own."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in events) + b"0\r\n\r\n"
