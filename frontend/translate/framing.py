"""The events of a reply as bytes: a chunk that is nothing but text goes between two halves that are always the same."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from frontend import sse
from frontend.translate.reply import Event, Reply
from model_repository.contract.output import GenerationChunk


class Framer:
    """Frames one reply's events.

    Args:
        reply: what tells of the chunks.
    """

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._halves: dict[int, tuple[bytes, bytes]] = {}  # of the event for a text, by choice

    def opening(self, first: GenerationChunk) -> bytes:
        """Return what comes before the first chunk of all."""
        return _framed(self._reply.opening(first))

    def frame(self, index: int, chunk: GenerationChunk) -> bytes:
        """Return what tells of a chunk of a choice; nothing where a parser holds the text back."""
        if not (self._reply.is_plain and chunk.is_text and chunk.text):
            return _framed(self._reply.events(index, chunk))
        halves = self._halves.get(index)
        if halves is None:
            halves = self._halves[index] = self._prepared(index)
        return halves[0] + sse.json_text(chunk.text) + halves[1]

    def _prepared(self, index: int) -> tuple[bytes, bytes]:
        mark = secrets.token_hex(16)  # nothing else in the event says this
        before, _, after = _framed(self._reply.events(index, GenerationChunk(text=mark))).partition(sse.json_text(mark))
        return before, after


def _framed(events: Sequence[Event]) -> bytes:
    return b"".join(map(sse.event, events))
