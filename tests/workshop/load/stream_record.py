"""From the bytes of a streamed answer to its chunks with their times, and its error."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import orjson

from tests.workshop.load.http_stream import Exchange

_EVENT_END = re.compile(rb"\r?\n\r?\n")
_LINE_END = re.compile(rb"\r?\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRecord:
    """One answer. A chunk is an event with text; times are of time.monotonic()."""

    sent_s: float
    ended_s: float
    chunk_times_s: tuple[float, ...]
    chunk_chars: tuple[int, ...]
    num_tokens: int  # by the server's count
    error: str = ""  # empty: a correct answer


def timed_events(pieces: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """Yield the data of each server-sent event, with the time of the piece that has its end."""
    body = b"".join(piece for _, piece in pieces)
    piece_ends = list(accumulate(len(piece) for _, piece in pieces))
    start = 0
    for end in _EVENT_END.finditer(body):
        lines = _LINE_END.split(body[start : end.start()])
        start = end.end()
        values = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
        if values:
            yield pieces[bisect_left(piece_ends, start)][0], b"\n".join(values)


def read_stream(exchange: Exchange, num_tokens: int, *, may_stop_early: bool) -> StreamRecord:
    """Return the record of an exchange, with an error if it is not the requested stream.

    Args:
        num_tokens: of the request.
        may_stop_early: whether the model may end before that.
    """
    times_s, chars, usage_tokens = [], [], 0
    finish_reason, last_event, error = None, b"", exchange.error or _status_error(exchange)
    if not error:
        for time_s, last_event in timed_events(exchange.pieces):
            if last_event == b"[DONE]":
                continue
            try:
                event = orjson.loads(last_event)
            except orjson.JSONDecodeError:
                error = f"an event that is not JSON: {last_event[:200]!r}"
                break
            if "error" in event:
                error = f"an error event: {event['error']}"
                break
            usage_tokens = (event.get("usage") or {}).get("completion_tokens", usage_tokens)
            for choice in event.get("choices", ()):
                finish_reason = choice.get("finish_reason") or finish_reason
                if text := _text(choice):
                    times_s.append(time_s)
                    chars.append(len(text))
    return StreamRecord(
        sent_s=exchange.sent_s,
        ended_s=exchange.ended_s,
        chunk_times_s=tuple(times_s),
        chunk_chars=tuple(chars),
        num_tokens=usage_tokens,
        error=error or _wrong_end(finish_reason, last_event, usage_tokens, num_tokens, may_stop_early),
    )


def _text(choice: dict[str, Any]) -> str:
    if "delta" in choice:
        delta = choice["delta"]
        return delta.get("content") or delta.get("reasoning_content") or ""
    return choice.get("text") or ""


def _status_error(exchange: Exchange) -> str:
    if exchange.status == 200:
        return ""
    body = b"".join(piece for _, piece in exchange.pieces)
    return f"status {exchange.status}: {body[:200].decode('utf-8', 'replace')}"


def _wrong_end(
    finish_reason: str | None, last_event: bytes, usage_tokens: int, num_tokens: int, may_stop_early: bool
) -> str:
    if last_event != b"[DONE]":
        return "the stream ended without [DONE]"
    if finish_reason == "length" and usage_tokens == num_tokens:
        return ""
    if finish_reason == "stop" and may_stop_early and 0 < usage_tokens <= num_tokens:
        return ""
    return f"finish_reason {finish_reason} after {usage_tokens} tokens by usage, {num_tokens} requested"
