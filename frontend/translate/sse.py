"""Server-sent events: their bytes, and the end of a stream."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import orjson

from frontend.translate.chat_reply import ChatReply
from frontend.translate.completion_reply import CompletionReply
from model_repository.contract.output import GenerationChunk

type Reply = ChatReply | CompletionReply

HEADERS: Mapping[str, str] = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would buffer the events
}

# [DONE] follows an error event too: some clients wait for it, all accept it.
DONE = b"data: [DONE]\n\n"

# Some clients split lines at these characters too. JSON may escape any character.
_LINE_BREAKS = {character.encode(): f"\\u{ord(character):04x}".encode() for character in "\u0085\u2028\u2029"}


class EventEncoder:
    """Encodes the events of one reply. All events with plain text of a choice share the bytes around the text."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._halves: dict[int, tuple[bytes, bytes]] = {}  # bytes before and after the text, by choice

    def opening(self, first: GenerationChunk) -> bytes:
        """Return the events before the first chunk of all."""
        return b"".join(map(event, self._reply.opening(first)))

    def encode(self, index: int, chunk: GenerationChunk) -> bytes:
        """Return the events of a chunk; empty while a parser holds the text back."""
        if not (self._reply.is_plain and chunk.is_text and chunk.text):
            return b"".join(map(event, self._reply.events(index, chunk)))
        halves = self._halves.get(index)
        if halves is None:
            mark = secrets.token_hex(16)  # a text that occurs once in the event
            (sample,) = self._reply.events(index, GenerationChunk(text=mark))
            before, _, after = event(sample).partition(_json(mark))
            halves = self._halves[index] = before, after
        return halves[0] + _json(chunk.text) + halves[1]


def event(payload: Mapping[str, Any]) -> bytes:
    """Return one event with a JSON object."""
    return b"data: " + _json(payload) + b"\n\n"


def _json(value: object) -> bytes:
    """Return a value as one line of JSON."""
    body = orjson.dumps(value)
    for raw, escaped in _LINE_BREAKS.items():
        body = body.replace(raw, escaped)
    return body
