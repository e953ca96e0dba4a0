"""What a request may end with. Each class carries its status; one middleware turns it into the error envelope.

APIError
├── InvalidRequest 400           semantics: names field, value and rule
│   ├── ValidationFailed         schema, range, missing field: 400, or the status of `validation_status`
│   ├── InvalidJSON              the body is not a JSON object in UTF-8
│   ├── UnsupportedValue         a known field with a value that is not served
│   └── ContextLengthExceeded    the prompt alone fills the context window
├── AuthenticationFailed 401     no API key, or one that is not known or has expired
├── PermissionDenied 403         the API key does not allow this model, organization, project or route
├── NotFound 404                 no such route
│   └── ModelNotFound            no such model
│       └── AdapterNotFound      its engine has no such LoRA adapter, or no longer
├── MethodNotAllowed 405
├── RequestTooLarge 413
├── UnsupportedMediaType 415     the body is not sent as JSON
├── URLTooLong 414, HeadersTooLarge 431
├── RequestTimeout 408           the client took too long to send it
├── ReaderTooSlow                an event only: the client took too long to read it
├── RateLimited 429              a limit of the sender's own; carries Retry-After unless trying again is in vain
├── ServerError 500              anything unexpected; its text never reaches the client
│   ├── TritonKeyRefused         Triton's restricted APIs want another key
│   └── EngineFailed             the engine broke under this request
│       ├── BadAnswer            what came from it makes no sense
│       ├── StreamBroken         what it said cannot be passed on
│       └── OutputStreamNotOpen  it did not take the request
├── GenerationTimeout 504        it took longer than any request may
└── Overloaded 503               full, or not ready; carries Retry-After
    ├── Draining                 the server is about to stop
    ├── TritonUnreachable        no connection to Triton
    │   └── NotTaken             nor has the engine the request
    ├── TritonTimeout            Triton did not answer before the deadline
    ├── QueueFull                the model is at its limit; Retry-After is computed from how fast it drains
    ├── ModelNotReady            the model is known, but not loaded now
    └── StageUnhealthy           a stage's process is gone: it needs a reload
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from model_repository.contract.tensors import KEY_VARIABLE

_SHOWN = reprlib.Repr(maxstring=80, maxother=80, maxlist=4, maxdict=4, maxlevel=3, maxlong=40)

MAX_DETAILS = 20  # a list of a million bad items must not become an answer of a million lines


class APIError(Exception):
    """An answer other than success, in OpenAI's words.

    Args:
        message: what is wrong, for the client's programmer.
        param: the field of the body at fault.
        code: a more specific word than the class's own.
    """

    status: int = 500
    type: ClassVar[str] = "server_error"
    code: str | None = None
    headers: Mapping[str, str] = {}

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code

    @property
    def detail(self) -> str | Sequence[Mapping[str, Any]]:
        """What FastAPI's clients read; a list for validation failures only."""
        return self.message

    def envelope(self) -> dict[str, Any]:
        """Return the body of the answer, or of the error event of a stream."""
        error = {"message": self.message, "type": type(self).type, "param": self.param, "code": self.code}
        return {"error": error, "detail": self.detail}


class InvalidRequest(APIError):
    """The client's mistake."""

    status, type, code = 400, "invalid_request_error", "invalid_value"


class ValidationFailed(InvalidRequest):
    """The body breaks the schema.

    Args:
        details: pydantic's errors, `loc` starting at "body".
        status: 400, or 422 where the settings say so.
    """

    def __init__(
        self, message: str, *, param: str | None, code: str, details: Sequence[Mapping[str, Any]], status: int
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status
        self._details = details

    @property
    def detail(self) -> Sequence[Mapping[str, Any]]:
        """Every failure, as FastAPI lists them."""
        return self._details


class InvalidJSON(InvalidRequest):
    """The body is not a JSON object in UTF-8."""

    code = "invalid_json"


class UnsupportedValue(InvalidRequest):
    """A known field with a value that is not served."""

    code = "unsupported_value"


class ContextLengthExceeded(InvalidRequest):
    """The prompt leaves no room for one token in the context window."""

    code = "context_length_exceeded"


class AuthenticationFailed(APIError):
    """There is no API key with the request, or none that is known and in force."""

    status, type, code = 401, "authentication_error", "invalid_api_key"
    headers: Mapping[str, str] = {"WWW-Authenticate": "Bearer"}


class PermissionDenied(APIError):
    """The API key does not allow what is asked for."""

    status, type, code = 403, "permission_error", "permission_denied"


class NotFound(APIError):
    """No such route."""

    status, type, code = 404, "invalid_request_error", "not_found"


class ModelNotFound(NotFound):
    """The request names a model that this server does not serve."""

    code = "model_not_found"

    def __init__(self, model_id: str) -> None:
        rule = "this server does not serve it; GET /v1/models lists what it serves"
        super().__init__(f"model={shown(model_id)}: {rule}", param="model")


class AdapterNotFound(ModelNotFound):
    """The engine has no such LoRA adapter, or no longer: this process has not noticed yet."""

    def __init__(self) -> None:
        NotFound.__init__(self, "The model has no such adapter, or no longer.", param="model")


class MethodNotAllowed(APIError):
    """The route exists for another method.

    Args:
        allowed: the methods it has.
    """

    status, type, code = 405, "invalid_request_error", "method_not_allowed"

    def __init__(self, message: str, allowed: set[str]) -> None:
        super().__init__(message)
        self.headers = {"Allow": ", ".join(sorted(allowed))}


class RequestTooLarge(APIError):
    """The body is longer than `max_body_bytes`."""

    status, type, code = 413, "invalid_request_error", "request_too_large"


class UnsupportedMediaType(APIError):
    """The body is not sent as JSON: a web page may send other media types without asking the server first."""

    status, type, code = 415, "invalid_request_error", "unsupported_media_type"


class RequestTimeout(APIError):
    """The client took too long to send the request."""

    status, type, code = 408, "invalid_request_error", "request_timeout"
    headers: Mapping[str, str] = {"Connection": "close"}


class URLTooLong(APIError):
    """The URL is longer than `max_url_bytes`."""

    status, type, code = 414, "invalid_request_error", "url_too_long"


class HeadersTooLarge(APIError):
    """A header is longer than `max_header_bytes`, or there are more than `max_headers`."""

    status, type, code = 431, "invalid_request_error", "headers_too_large"


class ReaderTooSlow(APIError):
    """The client is so far behind in reading its stream that the rest is not kept for it."""

    status, type, code = 408, "invalid_request_error", "reader_too_slow"

    def __init__(self) -> None:
        super().__init__("The stream was read too slowly, so it was ended.")


class GenerationTimeout(APIError):
    """The answer took longer than `request_timeout_s`."""

    status, type, code = 504, "server_error", "generation_timeout"


class RateLimited(APIError):
    """A limit of the key's own is reached.

    Args:
        code: `requests`, `tokens` or `grammars`.
        retry_after_s: when there is room again; None: never, for this request.
        headers: the state of the limits.
    """

    status, type, code = 429, "rate_limit_error", "requests"

    def __init__(self, message: str, *, code: str, retry_after_s: float | None, headers: Mapping[str, str]) -> None:
        super().__init__(message, code=code)
        self.headers = {**headers, **retry_headers(retry_after_s)}


class ServerError(APIError):
    """Anything unexpected: the log has the cause, the client does not."""

    code = "internal_error"

    def __init__(self, message: str = "The server failed while it worked on this request.") -> None:
        super().__init__(message)


class TritonKeyRefused(ServerError):
    """Triton's restricted APIs want a key that this frontend does not have."""

    code = "triton_key_refused"

    def __init__(self) -> None:
        super().__init__(
            f"{KEY_VARIABLE} is not the key that Triton was started with. Without it this frontend cannot load or "
            "unload models and adapters, drain engines, or reload stages that broke."
        )


class EngineFailed(ServerError):
    """The engine broke under this request."""

    code = "engine_failed"

    def __init__(self, message: str = "The engine failed while it worked on this request.") -> None:
        super().__init__(message)


class BadAnswer(EngineFailed):
    """Triton answered something that is no answer of ours."""


class StreamBroken(EngineFailed):
    """A completion said what no stream may say, such as text after its end; the rule is in metrics and log."""

    code = "invalid_stream"

    def __init__(self) -> None:
        super().__init__("The engine's answer is not valid.")


class OutputStreamNotOpen(EngineFailed):
    """The engine does not know our output stream, so it did not take the request."""


class Overloaded(APIError):
    """The server cannot take this request now; trying again may help."""

    status, type, code = 503, "overloaded_error", "overloaded"
    headers: Mapping[str, str] = {"Retry-After": "1"}


class QueueFull(Overloaded):
    """The model has no place for this request, and would have none in time.

    Args:
        retry_after_s: when it may have one.
    """

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.headers = retry_headers(retry_after_s)


class TritonUnreachable(Overloaded):
    """There is no connection to Triton.

    Args:
        reason: why, in grpc's words; for operators, clients are not told.
    """

    code = "triton_unreachable"

    def __init__(self, message: str = "The inference server cannot be reached.", *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.message} ({self.reason})" if self.reason else self.message


class NotTaken(TritonUnreachable):
    """The connection broke before the engine said that it has the request."""


class TritonTimeout(Overloaded):
    """Triton did not answer before the deadline."""

    code = "triton_timeout"

    def __init__(self, message: str = "The inference server did not answer in time.") -> None:
        super().__init__(message)


class ModelNotReady(Overloaded):
    """The model is known, but not loaded now."""

    code = "model_not_ready"

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model")


class ModelUnloaded(ModelNotReady):
    """The model was unloaded while it worked on the request."""

    def __init__(self) -> None:
        super().__init__("The model was unloaded before this request was finished.")


class Draining(Overloaded):
    """This server is about to stop. Another one may take the request, on a connection of its own."""

    code = "draining"
    headers: Mapping[str, str] = {"Retry-After": "1", "Connection": "close"}

    def __init__(self, message: str = "The server is about to stop and takes no new requests.") -> None:
        super().__init__(message)


class StageUnhealthy(Overloaded):
    """A stage's process is gone; Triton does not restart it by itself.

    Args:
        stage: the stage's Triton name.
    """

    code = "model_not_ready"

    def __init__(self, stage: str) -> None:
        super().__init__("A part of the model's pipeline is down and is being reloaded.")
        self.stage = stage


def retry_headers(wait_s: float | None) -> dict[str, str]:
    """Return headers that say when to try again: in whole seconds for all clients, in milliseconds for OpenAI's.

    Args:
        wait_s: None: trying again is in vain.
    """
    if wait_s is None:
        return {"x-should-retry": "false"}
    return {"Retry-After": str(max(1, math.ceil(wait_s))), "retry-after-ms": str(max(1, math.ceil(wait_s * 1000)))}


def shown(value: object) -> str:
    """Return a value as an error message shows it: as JSON would spell the common words, and short."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return _SHOWN.repr(value)
