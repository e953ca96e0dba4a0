"""Hostile requests: bytes for a socket, with a name and the allowed answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
MODEL = "demo"


@dataclass(frozen=True, slots=True)
class Hostile:
    """One hostile request.

    Args:
        name: for the report.
        raw: the bytes.
        statuses: the allowed statuses; empty: any below 500.
        max_answers: with more answers, the server has read a part of the request as another request.
    """

    name: str
    raw: bytes
    statuses: frozenset[int] = frozenset()
    max_answers: int = 2


type Corpus = Iterator[Hostile]


def request(
    method: str | bytes = "POST",
    target: str | bytes = COMPLETIONS,
    headers: tuple[str | bytes, ...] = (),
    body: bytes | None = None,
    connection: str = "close",
) -> bytes:
    """Return a request. With `connection="keep-alive"` the parser reads the bytes behind it too."""
    lines = [b" ".join((_raw(method), _raw(target), b"HTTP/1.1")), b"Host: localhost"]
    lines += [b"Connection: " + connection.encode(), *map(_raw, headers)]
    if not any(line.startswith(b"Content-Type:") for line in lines):
        lines.append(b"Content-Type: application/json")
    if body is not None:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join((*lines, b"", b"")) + (body or b"")


def post(body: Any, target: str | bytes = COMPLETIONS, headers: tuple[str | bytes, ...] = ()) -> bytes:
    """Return a request with a body: bytes as they are, other values as JSON."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    return request("POST", target, headers, payload)


def chat(content: Any = "hi", **fields: Any) -> bytes:
    """Return a chat of one message with these fields."""
    messages = [{"role": "user", "content": content}]
    return post({"model": MODEL, "messages": messages, "max_tokens": 2} | fields, CHAT)


def completion(**fields: Any) -> bytes:
    """Return a completion with these fields."""
    return post({"model": MODEL, "prompt": "hi", "max_tokens": 2} | fields)


def _raw(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
