"""Errors for malformed requests. They have no text of the request or of Python."""

from __future__ import annotations

from typing import Any

from aiohttp import http_exceptions

from frontend.errors import (
    APIError,
    HeadersTooLarge,
    InvalidRequest,
    RequestTimeout,
    ServerError,
    UnsupportedCoding,
    URLTooLong,
)

SERVER = "conch"  # the header `Server`; aiohttp would name its version and Python's

# The parser's error names only the limit that was exceeded, so the two sizes must differ.
MAX_URL_BYTES, MAX_HEADER_BYTES, MAX_HEADERS = 8192, 16384, 100
PARSER_LIMITS: dict[str, Any] = {
    "max_line_size": MAX_URL_BYTES,
    "max_field_size": MAX_HEADER_BYTES,
    "max_headers": MAX_HEADERS,
}

_TOO_MANY_HEADERS = "Too many headers received"
_NO_BROTLI = "Can not decode content-encoding: brotli"  # not in every image; where it is, the handler refuses br


def refusal(exc: BaseException | None) -> APIError:
    """Return the client's error for an exception outside its request's handler."""
    match exc:
        case http_exceptions.LineTooLong(args=(_, limit, *_)) if limit == MAX_URL_BYTES:
            return URLTooLong(f"The URL is longer than {MAX_URL_BYTES} bytes")
        case http_exceptions.LineTooLong():
            return HeadersTooLarge(f"A header is longer than {MAX_HEADER_BYTES} bytes")
        case http_exceptions.BadHttpMessage(message=message) if message == _TOO_MANY_HEADERS:
            return HeadersTooLarge(f"There are more than {MAX_HEADERS} headers")
        case http_exceptions.InvalidHeader():
            return InvalidRequest("A header is not valid HTTP/1.1", code="invalid_http")
        case http_exceptions.ContentEncodingError(message=message) if message.startswith(_NO_BROTLI):
            return UnsupportedCoding("br")
        case http_exceptions.ContentEncodingError():
            return InvalidRequest("The body is not encoded as its Content-Encoding says")
        case http_exceptions.PayloadEncodingError():
            return InvalidRequest("The framing of the body is not valid HTTP/1.1", code="invalid_http")
        case http_exceptions.HttpProcessingError():
            return InvalidRequest("The request is not valid HTTP/1.1", code="invalid_http")
        case TimeoutError():
            return RequestTimeout("The request took too long to arrive")
        case _:
            return ServerError()
