"""Attacks on where one request ends and the next begins: smuggling, bad chunks, bad lines, odd methods."""

from __future__ import annotations

from itertools import product

from tests.hostile.requests import CHAT, COMPLETIONS, Corpus, Hostile, request

_REFUSED = frozenset({400})
_SMUGGLED = b"5\r\nhello\r\n0\r\n\r\nGET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

_LENGTHS = (
    "0",
    "5",
    "+5",
    "-1",
    "05",
    "5,5",
    "5;5",
    "0x5",
    "5_0",
    "1e1",
    "9" * 20,
    "9" * 400,
    "",
    "five",
    "\u0665",
    "5 5",
)
_ENCODINGS = (
    "chunked",
    "Chunked",
    "chunked, identity",
    "identity",
    "xchunked",
    "\x0bchunked",
    "chunked;q=1",
    "gzip, chunked",
    "chunked, chunked",
    "'chunked'",
    "chunked\x00",
)
_PAIRS = (
    "Content-Length: 5\r\nContent-Length: 5",
    "Content-Length: 5\r\nContent-Length: 50",
    "Content-Length: 0\r\ncontent-length: 5",
    "Content-Length : 5",
    "Content_Length: 5\r\nTransfer-Encoding : chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding\r\n : chunked",
    "\tTransfer-Encoding: chunked",
    "Content-Length: 5\r\n Transfer-Encoding: chunked",
    "X: y\nTransfer-Encoding: chunked",
    "X: y\rTransfer-Encoding: chunked",
    "X: y\r\n folded",
    "X: y\r\n\tfolded",
    "X\x00: y",
    "X: y\x00",
    "X: \x01",
    ": empty",
    "no colon",
    "X y: z",
    "(X): y",
    "Host: b",
    "Host: a\r\nHost: b",
    "Transfer-Encoding: chunked\r\nContent-Length: 5\r\nContent-Length: 6",
    "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA",
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x",
    "Expect: 100-continue",
    "Expect: 200-ok",
)


def smuggling() -> Corpus:
    """Yield requests that two servers would cut in different places."""
    for length in _LENGTHS:
        yield Hostile(
            f"length {length[:20]!r}",
            request(headers=(f"Content-Length: {length}",), connection="keep-alive") + _SMUGGLED,
        )
    for encoding in _ENCODINGS:
        yield Hostile(
            f"encoding {encoding!r}",
            request(headers=(f"Transfer-Encoding: {encoding}",), connection="keep-alive") + _SMUGGLED,
        )
    for length, encoding in product(_LENGTHS, _ENCODINGS):
        headers = (f"Content-Length: {length}", f"Transfer-Encoding: {encoding}")
        for order in (headers, headers[::-1]):
            name = f"length {length[:20]!r} and encoding {encoding!r}{' turned' * (order is not headers)}"
            yield Hostile(name, request(headers=order, connection="keep-alive") + _SMUGGLED, _REFUSED, max_answers=1)
    for pair in _PAIRS:
        yield Hostile(f"headers {pair!r}", request(headers=(pair,), connection="keep-alive") + _SMUGGLED)


_CHUNKS = (
    b"5\r\nhello\r\n",
    b"5\r\nhel",
    b"5\nhello\n0\n\n",
    b"5\r\nhello0\r\n\r\n",
    b"5\r\nhelloworld\r\n0\r\n\r\n",
    b"-5\r\nhello\r\n0\r\n\r\n",
    b"+5\r\nhello\r\n0\r\n\r\n",
    b"0x5\r\nhello\r\n0\r\n\r\n",
    b"5 \r\nhello\r\n0\r\n\r\n",
    b" 5\r\nhello\r\n0\r\n\r\n",
    b"5_0\r\nhello\r\n0\r\n\r\n",
    b"g\r\nhello\r\n0\r\n\r\n",
    b"ffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    b"fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
    b"8000000000000000\r\nhello",
    b"5;a=b\r\nhello\r\n0\r\n\r\n",
    b"5;" + b"a" * 100_000 + b"\r\nhello\r\n0\r\n\r\n",
    b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    b"5;\x00\r\nhello\r\n0\r\n\r\n",
    b"0\r\nX: y\r\n\r\n",
    b"0\r\nContent-Length: 50\r\n\r\n",
    b"0\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
    b"0\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    b"0\r\n",
    b"\r\n",
    b"",
    b"1\r\n{\r\n" * 50_000 + b"0\r\n\r\n",
    b"0" * 100_000 + b"5\r\nhello\r\n0\r\n\r\n",
)


def chunking() -> Corpus:
    """Yield bodies in chunks that are none."""
    for target, chunks in product((COMPLETIONS, "/v1/models"), _CHUNKS):
        raw = request(target=target, headers=("Transfer-Encoding: chunked",), connection="keep-alive") + chunks
        yield Hostile(f"chunks {chunks[:30]!r} to {target}", raw)


_LINES = (
    "GET http://a/v1/models HTTP/1.1",
    "GET http://evil.example/v1/models HTTP/1.1",
    "GET http://a:b@c/v1/models HTTP/1.1",
    "GET file:///etc/passwd HTTP/1.1",
    "GET //evil.example/v1/models HTTP/1.1",
    "GET * HTTP/1.1",
    "OPTIONS * HTTP/1.1",
    "CONNECT evil.example:443 HTTP/1.1",
    "CONNECT /v1/models HTTP/1.1",
    "CONNECT [::1 HTTP/1.1",
    "GET http://[::1 HTTP/1.1",
    "GET http:// HTTP/1.1",
    "GET http://a:99999/ HTTP/1.1",
    "GET  /v1/models HTTP/1.1",
    "GET /v1/models  HTTP/1.1",
    "GET\t/v1/models\tHTTP/1.1",
    "GET /v1/ models HTTP/1.1",
    "GET /v1/models\x00 HTTP/1.1",
    "GET /v1/models HTTP/1.1 x",
    "GET /v1/models HTTP/0.9",
    "GET /v1/models HTTP/1.0",
    "GET /v1/models HTTP/1.2",
    "GET /v1/models HTTP/2.0",
    "GET /v1/models HTTP/3",
    "GET /v1/models HTTP/11",
    "GET /v1/models HTTP/1.",
    "GET /v1/models HTTP/-1.1",
    "GET /v1/models http/1.1",
    "GET /v1/models HTTPS/1.1",
    "GET /v1/models RTSP/1.0",
    "GET /v1/models",
    "GET",
    "",
    "G\x00T /v1/models HTTP/1.1",
    "get /v1/models HTTP/1.1",
    "FOO /v1/models HTTP/1.1",
    "GET\u00a0/v1/models HTTP/1.1",
    "A" * 10_000 + " / HTTP/1.1",
    "GET v1/models HTTP/1.1",
    "GET ?a HTTP/1.1",
    "GET # HTTP/1.1",
    "PRI * HTTP/2.0",
    "HTTP/1.1 200 OK",
    "SSH-2.0-OpenSSH_9.6",
)
_GREETINGS = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500 + b"\r\n\r\n",
    b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a\x21\x11\x00\x0c" + b"\x00" * 12,
    b"\x00" * 10_000,
    b"\xff" * 10_000,
    b"\r\n" * 10_000,
    b"\n" * 10_000,
    b"EHLO a\r\nMAIL FROM:<a>\r\n\r\n",
    b'{"jsonrpc": "2.0"}\n',
    b"*1\r\n$4\r\nPING\r\n",
    b"\x03\x00\x00\x13\x0e\xe0\x00\x00",
)
_PATHS = (CHAT, COMPLETIONS, "/v1/models", "/v1/models/demo", "/health/ready", "/openapi.json", "/tokenize", "/")
_METHODS = ("GET", "HEAD", "PUT", "PATCH", "DELETE", "TRACE", "OPTIONS", "PROPFIND", "PURGE")


def lines() -> Corpus:
    """Yield first lines that are none, and greetings of other protocols."""
    for line in _LINES:
        yield Hostile(f"line {line[:60]!r}", line.encode() + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    for greeting in _GREETINGS:
        yield Hostile(f"greeting {greeting[:20]!r}", greeting)
    for version in ("HTTP/1.1", "HTTP/1.0"):
        yield Hostile(
            f"bare line feeds {version}", f"GET /v1/models {version}\nHost: localhost\nConnection: close\n\n".encode()
        )
        yield Hostile(f"no host {version}", f"GET /v1/models {version}\r\nConnection: close\r\n\r\n".encode())


def methods() -> Corpus:
    """Yield every method at every path."""
    for method, path in product(_METHODS, _PATHS):
        yield Hostile(f"{method} {path}", request(method, path))
        yield Hostile(f"{method} {path} with a body", request(method, path, body=b"{}"))
