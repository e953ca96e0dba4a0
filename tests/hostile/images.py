"""Hostile images in well-formed requests: cut off, damaged, of another kind, bombs, wrong numbers of them."""

from __future__ import annotations

import base64
import io
import random
import struct
import zlib

from PIL import Image

from tests.hostile.requests import CHAT, MODEL, Corpus, Hostile, completion, post
from tests.pictures import jpeg_of_scans

_REFUSED = frozenset({400})
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_NUM_CUTS, _NUM_FLIPS = 20, 25
_SIDE = 24


def images() -> Corpus:
    """200 requests, each with an image in a chat."""
    for name in _FORMATS:
        file = _picture(name)
        for number in range(_NUM_CUTS):
            yield _hostile(f"{name} cut off, {number}", file[: 1 + number * len(file) // (_NUM_CUTS + 4)], _REFUSED)
        random_ = random.Random(name)
        for number in range(_NUM_FLIPS):
            damaged = bytearray(file)
            for _ in range(4):
                damaged[random_.randrange(len(file))] ^= 1 << random_.randrange(8)
            yield _hostile(f"{name} damaged, {number}", bytes(damaged))
    others = {
        "a bomb": _png(60_000, 60_000),
        "one long line": _png(2**31 - 1, 1),
        "no pixels": _png(0, 0),
        "many scans": jpeg_of_scans(6000, side=4096),
        "a TIFF file": _picture("TIFF"),
        "a BMP file": _picture("BMP"),
        "a PostScript program": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n(/etc/passwd) (r) file\n",
        "an SVG file": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "a text": b"hello",
        "one byte": b"\0",
        "random bytes": random.Random(0).randbytes(50_000),
    }
    for kind, file in others.items():
        yield _hostile(kind, file, _REFUSED)
    picture = _uri(_picture("PNG"))
    for name, uris, prompt in (
        ("too many", [picture] * 17, "<image>" * 17 + "a"),
        ("more images than places", [picture] * 2, "<image>a"),
        ("more places than images", [picture], "<image><image>a"),
        ("no place", [picture], "a"),
        ("nothing behind", [picture], "a<image>"),
    ):
        yield Hostile(name, completion(prompt=prompt, images=uris), _REFUSED)
    for uri in ("", "data:", "data:image/png;base64,", "data:image/png;base64,!!!!", "file:///etc/passwd"):
        yield Hostile(f"the URL {uri!r}", _chat(uri), _REFUSED)


def _hostile(name: str, file: bytes, statuses: frozenset[int] = frozenset()) -> Hostile:
    return Hostile(name, _chat(_uri(file)), statuses)


def _chat(uri: str) -> bytes:
    content = [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": "What is it?"}]
    return post({"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 2}, CHAT)


def _uri(file: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(file).decode()


def _picture(format: str) -> bytes:
    file = io.BytesIO()
    Image.frombytes("RGB", (_SIDE, _SIDE), random.Random(1).randbytes(3 * _SIDE**2)).save(file, format)
    return file.getvalue()


def _png(width: int, height: int) -> bytes:
    """Return a PNG file that ends soon after a header with this size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1 << 20), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
