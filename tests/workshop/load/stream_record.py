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

_LAST_EVENTS = ("response.completed", "response.incomplete", "message_stop")  # in place of [DONE]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRecord:
    """One answer. A chunk is an event with text; times are of time.monotonic()."""

    sent_s: float
    ended_s: float
    chunk_times_s: tuple[float, ...]
    chunk_chars: tuple[int, ...]
    num_tokens: int  # by the server's count; vectors of an answer with embeddings
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
    finish_reason, has_ended, error = None, False, exchange.error or _status_error(exchange)
    if not error:
        for time_s, data in timed_events(exchange.pieces):
            has_ended = data == b"[DONE]"
            if has_ended:
                continue
            try:
                event = orjson.loads(data)
            except orjson.JSONDecodeError:
                error = f"an event that is not JSON: {data[:200]!r}"
                break
            if event.get("error") or event.get("type") == "error":
                error = f"an error event: {event}"
                break
            has_ended = event.get("type") in _LAST_EVENTS
            text, usage, reason = _parts(event)
            usage_tokens = usage.get("completion_tokens", usage.get("output_tokens", usage_tokens))
            finish_reason = reason or finish_reason
            if text:
                times_s.append(time_s)
                chars.append(len(text))
    return StreamRecord(
        sent_s=exchange.sent_s,
        ended_s=exchange.ended_s,
        chunk_times_s=tuple(times_s),
        chunk_chars=tuple(chars),
        num_tokens=usage_tokens,
        error=error or _wrong_end(finish_reason, has_ended, usage_tokens, num_tokens, may_stop_early),
    )


def read_embeddings(exchange: Exchange, num_inputs: int) -> StreamRecord:
    """Return the record of an exchange, with an error unless there is a vector for each input."""
    error, vectors = exchange.error or _status_error(exchange), []
    if not error:
        vectors = [each["embedding"] for each in orjson.loads(b"".join(piece for _, piece in exchange.pieces))["data"]]
        if len(vectors) != num_inputs or not all(vectors):
            error = f"{sum(map(bool, vectors))} vectors for {num_inputs} inputs"
    return StreamRecord(
        sent_s=exchange.sent_s,
        ended_s=exchange.ended_s,
        chunk_times_s=(exchange.ended_s,),
        chunk_chars=(1,),
        num_tokens=len(vectors),
        error=error,
    )


def _parts(event: dict[str, Any]) -> tuple[str, dict[str, Any], str | None]:
    """Return an event's text, token counts and finish reason, each as far as it has one."""
    match event.get("type"):
        case None:
            choice: dict[str, Any] = next(iter(event.get("choices", ())), {})
            delta = choice.get("delta") or {"content": choice.get("text")}
            text = delta.get("content") or delta.get("reasoning_content") or ""
            return text, event.get("usage") or {}, choice.get("finish_reason")
        case "response.output_text.delta" | "response.reasoning_text.delta":
            return event["delta"], {}, None
        case "content_block_delta":
            delta = event["delta"]
            return delta.get("text") or delta.get("thinking") or "", {}, None
        case "response.completed" | "response.incomplete" as name:
            return "", event["response"]["usage"], "stop" if name == "response.completed" else "length"
        case "message_delta":
            return "", event["usage"], "length" if event["delta"]["stop_reason"] == "max_tokens" else "stop"
        case _:
            return "", {}, None


def _status_error(exchange: Exchange) -> str:
    if exchange.status == 200:
        return ""
    body = b"".join(piece for _, piece in exchange.pieces)
    return f"status {exchange.status}: {body[:200].decode('utf-8', 'replace')}"


def _wrong_end(
    finish_reason: str | None, has_ended: bool, usage_tokens: int, num_tokens: int, may_stop_early: bool
) -> str:
    if not has_ended:
        return "the stream ended without its last event"
    if finish_reason == "length" and usage_tokens == num_tokens:
        return ""
    if finish_reason == "stop" and may_stop_early and 0 < usage_tokens <= num_tokens:
        return ""
    return f"finish_reason {finish_reason} after {usage_tokens} tokens by usage, {num_tokens} requested"
