"""Server-sent events: their bytes, and the end of a stream."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence

import orjson

from frontend.errors import APIError
from frontend.json_pieces import json_bytes, json_pieces
from frontend.translate.reply import Event, Reply
from model_repository.contract.output import GenerationChunk

HEADERS: Mapping[str, str] = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would buffer the events
}

DONE = b"data: [DONE]\n\n"

_NUMBER = "sequence_number"  # the last field of an event
_END = b"\n\n"
_NUMBER_END = b"}" + _END

# Some clients split lines at these characters too. JSON may escape any character.
_LINE_BREAKS = {character.encode(): f"\\u{ord(character):04x}".encode() for character in "\u0085\u2028\u2029"}


class EventEncoder:
    """Encodes the events of one reply. Events that differ in their text alone share the bytes around it."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self._frames: dict[tuple[int, str], list[bytes]] = {}  # bytes around the text, by choice and part
        self._num_events = 0
        self._has_begun = False
        self.end = DONE if reply.has_done else b""  # the stream's end, also after an error

    def encode(self, index: int, chunk: GenerationChunk) -> bytes | Iterator[bytes]:
        """Return the events of a chunk, in pieces if they have long lists; nothing while a parser holds the text back.

        The events that open the stream precede those of the first chunk of all.
        """
        opening = self.begin(chunk)
        plain = self.plain(index, chunk)
        if plain is not None:
            return opening + plain
        pieces = self._pieces(self._reply.events(index, chunk))
        if isinstance(pieces, list):
            return b"".join([opening, *pieces])
        return itertools.chain([opening], pieces)

    def begin(self, first: GenerationChunk) -> bytes:
        """Return the events before the content, once."""
        if self._has_begun:
            return b""
        self._has_begun = True
        return self.further(self._reply.opening(first))

    def further(self, events: Sequence[Event]) -> bytes:
        """Return events that are of no chunk."""
        return b"".join(self._pieces(events))

    def plain(self, index: int, chunk: GenerationChunk) -> bytes | None:
        """Return the event of a chunk that extends the text alone; None: it does not."""
        part = self._reply.plain_part(index, chunk)
        if part is None:
            return None
        frame = self._frames.get((index, part))
        if frame is None:
            frame = self._frames[index, part] = self._frame(index, is_thinking=bool(chunk.spans))
        encoded = _json(chunk.text).join(frame)
        if not self._reply.is_numbered:
            return encoded
        self._num_events += 1
        return b"%b%d%b" % (encoded, self._num_events - 1, _NUMBER_END)

    def failure(self, error: APIError) -> bytes:
        """Return the events that end the stream with an error."""
        return self.further(self._reply.failure(error)) + self.end

    def _frame(self, index: int, *, is_thinking: bool) -> list[bytes]:
        """Return the bytes around the text of a plain chunk's events, and up to the number of a numbered event."""
        mark = secrets.token_hex(16)  # occurs nowhere else in the event
        sample = GenerationChunk(text=mark, spans=(len(mark),) if is_thinking else ())
        [event] = self._reply.plain_events(index, sample)
        numbered = {**event, _NUMBER: 0} if self._reply.is_numbered else event
        encoded = self._lead(event) + _json(numbered) + _END
        return encoded.removesuffix(b"0" + _NUMBER_END).split(_json(mark))

    def _pieces(self, events: Sequence[Event]) -> Iterable[bytes]:
        """Return the events one by one, or the pieces of events with lazy lists."""
        if self._reply.is_numbered:
            events = [{**each, _NUMBER: number} for number, each in enumerate(events, self._num_events)]
            self._num_events += len(events)
        try:
            return [self._lead(each) + _on_one_line(orjson.dumps(each)) + _END for each in events]
        except orjson.JSONEncodeError:
            return itertools.chain.from_iterable(event(each, self._lead(each)) for each in events)

    def _lead(self, event: Event) -> bytes:
        return b"event: %b\ndata: " % event["type"].encode() if self._reply.has_names else b"data: "


def event(payload: Event, lead: bytes = b"data: ") -> Iterator[bytes]:
    """Yield the pieces of one event with a JSON object."""
    yield lead
    yield from map(_on_one_line, json_pieces(payload))
    yield _END


def _json(value: object) -> bytes:
    """Return a value as one line of JSON."""
    return _on_one_line(json_bytes(value))


def _on_one_line(written: bytes) -> bytes:
    for raw, escaped in _LINE_BREAKS.items():
        written = written.replace(raw, escaped)
    return written
