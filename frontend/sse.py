"""Server-sent events: framing, and the end of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from frontend.errors import APIError

HEADERS: Mapping[str, str] = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would hold the events back
}

# [DONE] follows an error event too: some clients wait for it, none minds.
DONE = b"data: [DONE]\n\n"

# Clients that split lines with Unicode's rules would cut an event at these; JSON may escape any character.
_LINE_BREAKS = {character.encode(): f"\\u{ord(character):04x}".encode() for character in "\u0085\u2028\u2029"}


def event(payload: Mapping[str, Any]) -> bytes:
    """Return one event with a JSON object."""
    return b"data: " + _one_line(orjson.dumps(payload)) + b"\n\n"


def json_text(text: str) -> bytes:
    """Return a text as it stands inside an event."""
    return _one_line(orjson.dumps(text))


def _one_line(body: bytes) -> bytes:
    for raw, escaped in _LINE_BREAKS.items():
        body = body.replace(raw, escaped)
    return body


def error_event(error: APIError) -> bytes:
    """Return the event that tells of an error after the first byte."""
    return event(error.envelope())
