"""The errors of requests. Each class has its status; one middleware writes the error envelope.

APIError
├── InvalidRequest 400           the client's mistake: names field, value and rule
│   ├── CannotContinue           nothing can follow in a running completion
│   ├── ValidationFailed         schema, range, missing field: 400, or the status of `validation_status`
│   ├── InvalidJSON              the body is not a JSON object in UTF-8
│   ├── UnsupportedValue         a known field with an unsupported value
│   └── ContextLengthExceeded    the prompt leaves no room for one token in the context window
├── AuthenticationFailed 401     the API key is missing, unknown or expired
├── PermissionDenied 403         the API key does not allow this model, organization, project or route
├── NotFound 404                 no such route
│   ├── NotStored                nothing of this id is stored: never, no more, or by another key
│   └── ModelNotFound            this server does not serve the model
│       └── AdapterNotFound      the engine has unloaded the LoRA adapter, and this process has not noticed yet
├── MethodNotAllowed 405
├── RequestTooLarge 413          the body is longer than `max_body_bytes`
├── UnsupportedMediaType 415     the body is not sent as JSON: web pages can send other types without our consent
│   └── UnsupportedCoding        the body is compressed by another method than those of CONTENT_CODINGS
├── URLTooLong 414, HeadersTooLarge 431
├── RequestTimeout 408           the client sent the request too slowly
├── ReaderTooSlow                an event only: the client read the stream too slowly
├── RateLimited 429              a limit of the key; with Retry-After unless the request can never succeed; the code
│                                may also be `tokens` or `too_many_waiting`
├── ServerError 500              unexpected: the log has the cause, the answer does not
│   ├── TritonKeyRefused         Triton's restricted APIs need a key that this frontend does not have
│   ├── NotFinite                the model's numbers for this request are NaN or infinite, also at each further try
│   └── EngineFailed             the engine failed during this request
│       ├── BreaksEngine         the engine has died with this request, also alone
│       ├── BadAnswer            Triton's answer cannot be read
│       └── OutputStreamNotOpen  the engine does not know the output stream
├── GenerationTimeout 504        the request took longer than `request_timeout_s`
└── Overloaded 503               full, or not ready: trying again may help; with Retry-After
    ├── Draining                 the server is about to stop; another one may take the request, on another connection
    ├── TritonUnreachable        no connection to Triton
    │   └── NotTaken             and the engine does not have the request
    ├── StoreFailed              the place of stored conversations does not answer
    ├── TritonTimeout            Triton did not answer before the deadline
    ├── QueueFull                a queue for requests, or for the chunks of an answer, is full
    ├── ModelNotReady            the model is known, but not loaded
    │   ├── ModelTooLarge        it does not fit into the memory, whatever else is unloaded
    │   ├── LoadFailed           its last load has failed, and the next try is not due yet
    │   └── ModelUnloaded        the model was unloaded during the request
    └── StageUnhealthy           a stage's process is dead and needs a reload
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from model_repository.contract.tensors import KEY_VARIABLE, ensemble_of_stage, stage_name
from model_repository.system.command_parser import did_you_mean

_MAX_COMPARED = 256  # characters of a name: the search for near ones takes time for each
_MAX_NAMED = 8  # models in an error
_SHOWN = reprlib.Repr(maxstring=80, maxother=80, maxlist=4, maxdict=4, maxlevel=3, maxlong=40)

CONTENT_CODINGS = ("gzip", "deflate", "zstd")  # compressions of bodies
MAX_DETAILS = 20  # a list of a million bad items gets a short answer


class APIError(Exception):
    """An error in OpenAI's form.

    Args:
        message: for the client's programmer.
        param: the wrong field of the body.
        code: more specific than the class's code.
        headers: of the response.

    None means the attribute of the class.
    """

    status: int = 500
    type: ClassVar[str] = "server_error"
    code: str | None = None
    message: str  # a class has it if all its errors may have the same
    param: str | None = None
    headers: Mapping[str, str] = {}
    is_over: bool = False  # the engine refused the request, or never had it, or has ended it
    index: int | None = None  # of the completion that failed, in its request

    def __init__(
        self,
        message: str | None = None,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.message = self.message if message is None else message
        self.param = self.param if param is None else param
        self.code = code or self.code
        self.headers = self.headers if headers is None else headers
        super().__init__(self.message)

    @property
    def detail(self) -> str | Sequence[Mapping[str, Any]]:
        """The field that FastAPI's clients read; a list for validation failures only."""
        return self.message

    def envelope(self) -> dict[str, Any]:
        """Return the body of the answer, or the error event of a stream."""
        error = {"message": self.message, "type": type(self).type, "param": self.param, "code": self.code}
        return {"error": error, "detail": self.detail}


class InvalidRequest(APIError):
    status, type, code = 400, "invalid_request_error", "invalid_value"
    is_over = True


class CannotContinue(InvalidRequest):
    """Nothing can follow in a running completion, so its tokens are charged all the same."""


class ValidationFailed(InvalidRequest):
    """The body breaks the schema.

    Args:
        details: pydantic's errors, `loc` starting at "body".
        status: 400, or 422 by `validation_status`.
    """

    def __init__(
        self, message: str, *, param: str | None, code: str, details: Sequence[Mapping[str, Any]], status: int
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status
        self._details = details

    @property
    def detail(self) -> Sequence[Mapping[str, Any]]:
        """Every failure, in FastAPI's form."""
        return self._details


class InvalidJSON(InvalidRequest):
    code = "invalid_json"


class UnsupportedValue(InvalidRequest):
    code = "unsupported_value"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class AuthenticationFailed(APIError):
    status, type, code = 401, "authentication_error", "invalid_api_key"
    headers: Mapping[str, str] = {"WWW-Authenticate": "Bearer"}


class PermissionDenied(APIError):
    status, type, code = 403, "permission_error", "permission_denied"


class NotFound(APIError):
    status, type, code = 404, "invalid_request_error", "not_found"
    is_over = True


class NotStored(NotFound):
    """Nothing of this id is stored, or another key has stored it."""


class ModelNotFound(NotFound):
    code, param = "model_not_found", "model"

    def __init__(self, model_id: str, known: Iterable[str] = ()) -> None:
        names = list(known)
        all_names = f"its models are {', '.join(names)}" if 0 < len(names) <= _MAX_NAMED else ""
        hint = did_you_mean(model_id[:_MAX_COMPARED], names) or f"; {all_names or 'GET /v1/models lists its models'}"
        super().__init__(f"model={shown(model_id)}: this server does not serve it{hint}")


class AdapterNotFound(ModelNotFound):
    def __init__(self) -> None:
        NotFound.__init__(self, "The model has no such adapter.")


class MethodNotAllowed(APIError):
    """The route exists for another method.

    Args:
        allowed: the route's methods.
    """

    status, type, code = 405, "invalid_request_error", "method_not_allowed"

    def __init__(self, message: str, allowed: set[str]) -> None:
        super().__init__(message)
        self.headers = {"Allow": ", ".join(sorted(allowed))}


class RequestTooLarge(APIError):
    status, type, code = 413, "invalid_request_error", "request_too_large"


class UnsupportedMediaType(APIError):
    status, type, code = 415, "invalid_request_error", "unsupported_media_type"


class UnsupportedCoding(UnsupportedMediaType):
    """The body has a content coding that is not decoded.

    Args:
        coding: the header Content-Encoding.
    """

    headers: Mapping[str, str] = {"Accept-Encoding": ", ".join(CONTENT_CODINGS)}

    def __init__(self, coding: str) -> None:
        super().__init__(f"Content-Encoding={shown(coding)}: must be {', '.join(CONTENT_CODINGS)} or absent")


class RequestTimeout(APIError):
    status, type, code = 408, "invalid_request_error", "request_timeout"
    headers: Mapping[str, str] = {"Connection": "close"}


class URLTooLong(APIError):
    status, type, code = 414, "invalid_request_error", "url_too_long"


class HeadersTooLarge(APIError):
    status, type, code = 431, "invalid_request_error", "headers_too_large"


class ReaderTooSlow(APIError):
    status, type, code = 408, "invalid_request_error", "reader_too_slow"
    message = "The stream was read too slowly, so it was ended."


class GenerationTimeout(APIError):
    status, type, code = 504, "server_error", "generation_timeout"


class RateLimited(APIError):
    status, type, code = 429, "rate_limit_error", "requests"
    is_over = True


class ServerError(APIError):
    code = "internal_error"
    message = "The server failed while it worked on this request."


class TritonKeyRefused(ServerError):
    code = "triton_key_refused"
    message = (
        f"{KEY_VARIABLE} is not Triton's key. Without the key this frontend cannot load or unload models and "
        "adapters, drain engines, or reload broken stages."
    )


class NotFinite(ServerError):
    code, param = "not_finite", "prompt"
    message = (
        "prompt: the model's numbers for it are not finite: the model's file is damaged, or its precision is too small"
    )
    headers: Mapping[str, str] = {"x-should-retry": "false"}


class EngineFailed(ServerError):
    code = "engine_failed"
    message = "The engine failed while it worked on this request."


class BreaksEngine(EngineFailed):
    """The engine has died with this request several times, the last time when no other one could be the cause."""

    code = "request_breaks_engine"
    message = "The engine ends at this request."
    headers: Mapping[str, str] = {"x-should-retry": "false"}


class BadAnswer(EngineFailed):
    """Triton's answer cannot be read."""


class OutputStreamNotOpen(EngineFailed):
    """The engine does not know our output stream, so it does not have the request."""


class Overloaded(APIError):
    status, type, code = 503, "overloaded_error", "overloaded"
    headers: Mapping[str, str] = {"Retry-After": "1"}


class QueueFull(Overloaded):
    is_over = True


class TritonUnreachable(Overloaded):
    """There is no connection to Triton.

    Args:
        reason: grpc's message, for operators only.
    """

    code = "triton_unreachable"
    message = "The inference server cannot be reached."

    def __init__(self, *, reason: str = "") -> None:
        super().__init__()
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.message} ({self.reason})" if self.reason else self.message


class NotTaken(TritonUnreachable):
    """The connection broke before the engine confirmed the request."""


class StoreFailed(Overloaded):
    code = "store_unavailable"


class TritonTimeout(Overloaded):
    code = "triton_timeout"
    message = "The inference server did not answer in time."


class ModelNotReady(Overloaded):
    code, param = "model_not_ready", "model"


class ModelTooLarge(ModelNotReady):
    code = "model_too_large"
    headers: Mapping[str, str] = {"x-should-retry": "false"}


class LoadFailed(ModelNotReady):
    code = "load_failed"


class ModelUnloaded(ModelNotReady):
    message = "The model was unloaded before this request was finished."
    is_over = True


class Draining(Overloaded):
    code = "draining"
    message = "The server is about to stop and takes no new requests."
    headers: Mapping[str, str] = {"Retry-After": "1", "Connection": "close"}


class StageUnhealthy(Overloaded):
    """A stage's process is dead. Triton does not restart it.

    Args:
        stage: the stage's Triton name.
    """

    code = "model_not_ready"
    message = "A part of the model's pipeline is down and is being reloaded."

    def __init__(self, stage: str) -> None:
        super().__init__()
        self.stage = stage
        self.is_over = stage == stage_name(ensemble_of_stage(stage), "engine")


def retry_headers(wait_s: float | None) -> dict[str, str]:
    """Return headers with the time to retry: in seconds for all clients, in milliseconds for OpenAI's.

    Args:
        wait_s: None: the request can never succeed.
    """
    if wait_s is None:
        return {"x-should-retry": "false"}
    return {"Retry-After": str(max(1, math.ceil(wait_s))), "retry-after-ms": str(max(1, math.ceil(wait_s * 1000)))}


def shown(value: object) -> str:
    """Return a short form of a value for an error message, with JSON's null, true and false."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return _SHOWN.repr(value)
