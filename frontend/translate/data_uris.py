"""Data URIs in requests to the bytes of their files."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence

from frontend.errors import InvalidRequest, UnsupportedValue, shown

# OpenAI's spelling, and Fireworks' older one without `data:` and `;base64`.
_IMAGE = re.compile(r"(?:data:)?(?P<mime>image/[\w.+-]+)(?:;base64)?,(?P<payload>.*)", re.DOTALL)
_FILE = re.compile(r"(?:data:[^,]*;base64,)?(?P<payload>.*)", re.DOTALL)  # OpenAI's models take base64 alone, too
_WHITE_SPACE = dict.fromkeys(b"\t\n\f\r ")  # browsers drop it too: forgiving-base64 in WHATWG's Infra


def images_from_data_uris(uris: Sequence[str]) -> tuple[bytes, ...]:
    """Return the images of a completion.

    Raises:
        UnsupportedValue, InvalidRequest: as for one.
    """
    return tuple(image_from_data_uri(uri, f"images[{index}]") for index, uri in enumerate(uris))


def image_from_data_uri(uri: str, param: str) -> bytes:
    """Return the image in a data URI.

    Raises:
        UnsupportedValue: the URL is not a data URI.
        InvalidRequest: the data is not base64.
    """
    found = _IMAGE.fullmatch(uri)
    if found is None:
        rule = "expected data:image/...;base64,...; this server does not fetch it"
        raise UnsupportedValue(f"{param}={shown(uri)}: {rule}", param=param)
    return _decoded(found["payload"], param)


def file_from_data_uri(uri: str, param: str) -> bytes:
    """Return the file in a data URI, or in base64 alone.

    Raises:
        InvalidRequest: the data is not base64.
    """
    found = _FILE.fullmatch(uri)
    assert found is not None, "a payload is any text"
    return _decoded(found["payload"], param)


def _decoded(payload: str, param: str) -> bytes:
    try:
        file = base64.b64decode(payload.translate(_WHITE_SPACE), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(f"{param}: not base64 ({exc})", param=param) from exc
    if not file:
        raise InvalidRequest(f"{param}: the file is empty", param=param)
    return file
