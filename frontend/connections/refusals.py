"""What aiohttp's parser refuses, in our words: nothing of the request and nothing of Python stands in them."""

from __future__ import annotations

from typing import Any

from aiohttp import http_exceptions

from frontend.errors import (
    APIError,
    HeadersTooLarge,
    InvalidRequest,
    RequestTimeout,
    ServerError,
    URLTooLong,
)
from frontend.settings import Settings

SERVER = "conch"  # what answers are signed with; aiohttp would name itself, Python, and both versions

_TOO_MANY_HEADERS = "Too many headers received"
_TRANSFER_ENCODING = "The framing of the body is not valid HTTP/1.1"


def parser_limits(settings: Settings) -> dict[str, Any]:
    """Return the parser's limits. Its error names only the limit, so a URL's and a header's are never the same."""
    is_same = settings.max_header_bytes == settings.max_url_bytes
    return {
        "max_line_size": settings.max_url_bytes,
        "max_field_size": settings.max_header_bytes + is_same,
        "max_headers": settings.max_headers,
    }


def refusal(exc: BaseException | None, settings: Settings) -> APIError:
    """Return what a client is told of an exception that came before or beside its request's handler."""
    limits = parser_limits(settings)
    match exc:
        case http_exceptions.LineTooLong(args=(_, limit, *_)) if limit == limits["max_line_size"]:
            return URLTooLong(f"The URL is longer than {settings.max_url_bytes} bytes")
        case http_exceptions.LineTooLong():
            return HeadersTooLarge(f"A header is longer than {settings.max_header_bytes} bytes")
        case http_exceptions.BadHttpMessage(message=message) if message == _TOO_MANY_HEADERS:
            return HeadersTooLarge(f"There are more than {settings.max_headers} headers")
        case http_exceptions.InvalidHeader():
            return InvalidRequest("A header is not valid HTTP/1.1", code="invalid_http")
        case http_exceptions.PayloadEncodingError():
            return InvalidRequest(_TRANSFER_ENCODING, code="invalid_http")
        case http_exceptions.HttpProcessingError():
            return InvalidRequest("The request is not valid HTTP/1.1", code="invalid_http")
        case TimeoutError():
            return RequestTimeout("The request took too long to come")
        case _:
            return ServerError()
