"""Attacks on the borders between requests, in the places where the frontend's own refusals answer."""

from __future__ import annotations

from itertools import product

from tests.hostile.requests import CHAT, COMPLETIONS, Corpus, Hostile, request

_REFUSED = frozenset({400})
_SMUGGLED = b"5\r\nhello\r\n0\r\n\r\nGET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
_HEADERS = (
    ("Content-Length: 5", "Content-Length: 50"),
    ("Content-Length: 5", "Transfer-Encoding: chunked"),
    ("Transfer-Encoding: chunked", "Content-Length: 5"),
    ("Content-Length: +5",),
    ("Content-Length: " + "9" * 400,),
    ("Transfer-Encoding: xchunked",),
    ("Transfer-Encoding: identity, chunked",),
    ("Transfer-Encoding : chunked",),
    ("X: y\r\n folded",),
    ("X\x00: y",),
    ("no colon",),
)


def smuggling() -> Corpus:
    """Yield requests that two servers would cut in different places. A second answer would be to the smuggled one."""
    for headers in _HEADERS:
        raw = request(headers=headers, connection="keep-alive") + _SMUGGLED
        yield Hostile(f"headers {headers}"[:80], raw, _REFUSED, max_answers=1)
    for header in ("Expect: 100-continue", "Expect: 200-ok", "Upgrade: h2c", "Upgrade: websocket"):
        yield Hostile(header, request(headers=(header,), connection="keep-alive") + _SMUGGLED)


_CHUNKS = (
    b"g\r\nhello\r\n0\r\n\r\n",
    b"-5\r\nhello\r\n0\r\n\r\n",
    b"ffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    b"5;" + b"a" * 100_000 + b"\r\nhello\r\n0\r\n\r\n",
    b"0\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
    b"5\r\nhel",
    b"1\r\n{\r\n" * 50_000 + b"0\r\n\r\n",
)


def chunking() -> Corpus:
    """Yield bodies in malformed chunks, to a route that reads its body and to one that does not."""
    for target, chunks in product((COMPLETIONS, "/v1/models"), _CHUNKS):
        raw = request(target=target, headers=("Transfer-Encoding: chunked",), connection="keep-alive") + chunks
        yield Hostile(f"chunks {chunks[:30]!r} to {target}", raw)


_LINES = (
    "GET http://a:b@c/v1/models HTTP/1.1",
    "GET http://[::1 HTTP/1.1",
    "GET * HTTP/1.1",
    "CONNECT [::1 HTTP/1.1",
    "GET  /v1/models HTTP/1.1",
    "GET /v1/models HTTP/0.9",
    "GET /v1/models HTTP/1.2",
    "GET /v1/models HTTP/2.0",
    "GET /v1/models RTSP/1.0",
    "GET /v1/models",
    "G\x00T /v1/models HTTP/1.1",
    "FOO /v1/models HTTP/1.1",
    "A" * 10_000 + " / HTTP/1.1",
    "PRI * HTTP/2.0",
)
_GREETINGS = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500 + b"\r\n\r\n",
    b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\xff" * 10_000,
    b"\r\n" * 10_000,
)


def lines() -> Corpus:
    """Yield malformed first lines, and greetings of other protocols."""
    for line in _LINES:
        yield Hostile(f"line {line[:60]!r}", line.encode() + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    for greeting in _GREETINGS:
        yield Hostile(f"greeting {greeting[:20]!r}", greeting)
    for version in ("HTTP/1.1", "HTTP/1.0"):
        yield Hostile(f"no host {version}", f"GET /v1/models {version}\r\nConnection: close\r\n\r\n".encode())


def methods() -> Corpus:
    """Yield methods at paths of each kind."""
    for method, path in product(("HEAD", "DELETE", "TRACE", "OPTIONS", "PURGE"), (CHAT, "/v1/models", "/")):
        yield Hostile(f"{method} {path}", request(method, path, body=b"{}"))
