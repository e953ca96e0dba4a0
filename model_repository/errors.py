"""What a stage may raise. Each class carries its code: a word that survives the way through Triton to the client.

StageError
├── InvalidRequest        the client's mistake: names field, value and rule
│   ├── PromptTooLong     the prompt alone fills the context window
│   ├── UnknownAdapter    the model has no LoRA adapter of that name, or no longer
│   └── Unsupported       known, but this model or runtime cannot honour it
├── Overloaded            the engine's queue is full
├── TooManyGrammars       one sender has more grammars waiting or in use than it may
├── KeyRefused            a control message lacks Triton's key
├── EngineFailed          the runtime broke under this request
├── Unloading             the model is being unloaded, and the request's time is up
├── OutputStreamNotOpen   the output stream that a request names is not open, or no longer
└── InternalError         anything unexpected; its text never reaches the client
"""

from __future__ import annotations

import logging
import re
from typing import ClassVar

logger = logging.getLogger(__name__)

LOAD_FAILURE = "does not load:"  # in a stage's log, before the reason


class StageError(Exception):
    """A request that a stage could not serve.

    Args:
        text: what is wrong, for people: the value and the rule.
        field: the input at fault, by its name in the tensor contract.
    """

    code: ClassVar[str] = "internal_error"
    triton_code: ClassVar[str] = "INTERNAL"  # a name in pb_utils.TritonError

    def __init__(self, text: str, field: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.field = field

    def message(self) -> str:
        """Return the text that travels through Triton: `[code] field: text`, without halves of surrogate pairs."""
        text = self.text.encode(errors="replace").decode()
        return f"[{self.code}] {self.field}: {text}" if self.field else f"[{self.code}] {text}"


class InvalidRequest(StageError):
    """An input is malformed or out of range."""

    code = "invalid_value"
    triton_code = "INVALID_ARG"


class PromptTooLong(InvalidRequest):
    """The prompt leaves no room for one completion token in the context window."""

    code = "context_length_exceeded"


class UnknownAdapter(InvalidRequest):
    """The model has no LoRA adapter of that name."""

    code = "adapter_not_found"


class Unsupported(InvalidRequest):
    """A known input with a value that this model or its runtime cannot honour."""

    code = "unsupported_value"


class Overloaded(StageError):
    """The engine's queue is full."""

    code = "overloaded"
    triton_code = "UNAVAILABLE"


class TooManyGrammars(StageError):
    """One sender has more grammars waiting, or in use, than it may."""

    code = "too_many_grammars"
    triton_code = "UNAVAILABLE"


class KeyRefused(StageError):
    """A control message lacks Triton's key."""

    code = "key_refused"
    triton_code = "UNAVAILABLE"


class EngineFailed(StageError):
    """The runtime failed while it worked on this request."""

    code = "engine_failed"
    triton_code = "INTERNAL"


class Unloading(StageError):
    """Somebody unloads the model, and this request did not end in time."""

    code = "unloading"
    triton_code = "UNAVAILABLE"


class OutputStreamNotOpen(StageError):
    """The engine does not know the output stream: it was loaded anew, or took the reader for gone."""

    code = "output_stream_not_open"
    triton_code = "NOT_FOUND"


class InternalError(StageError):
    """An unexpected exception; details are in the stage's log only."""

    def __init__(self, text: str = "internal error, see the server's log", field: str | None = None) -> None:
        super().__init__(text, field)


def stage_error(exc: BaseException, request_id: str = "") -> StageError:
    """Return the error that the client gets for an exception, and log it: a refusal without its text.

    An unexpected exception is logged in full, and its text stays here.
    """
    if not isinstance(exc, StageError):
        logger.error("unexpected exception while serving request_id=%s", request_id or "-", exc_info=exc)
        return InternalError()
    if isinstance(exc, InvalidRequest | Overloaded | TooManyGrammars):
        logger.info("refused: %s request_id=%s", exc.code, request_id or "-")
    return exc


_BY_CODE: dict[str, type[StageError]] = {
    error.code: error
    for error in (
        InvalidRequest,
        PromptTooLong,
        UnknownAdapter,
        Unsupported,
        Overloaded,
        TooManyGrammars,
        KeyRefused,
        EngineFailed,
        Unloading,
        OutputStreamNotOpen,
        InternalError,
    )
}
# Triton puts its own words before it.
_MESSAGE = re.compile(
    rf"\[(?P<code>{'|'.join(_BY_CODE)})\] (?:(?P<field>[A-Za-z_][\w.\[\]]*): )?(?P<text>.*)", re.DOTALL
)


def error_from_message(message: str) -> StageError | None:
    """Return the stage error inside a Triton error message, or None when Triton itself speaks."""
    found = _MESSAGE.search(message)
    if found is None:
        return None
    return _BY_CODE[found["code"]](found["text"], found["field"])
