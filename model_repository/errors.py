"""The errors of the stages. The code of a class is a word that travels through Triton to the client.

StageError
├── InvalidRequest        the client's mistake: names field, value and rule
│   ├── CannotContinue    nothing can follow in a running completion, or its grammar takes too much work
│   ├── PromptTooLong     the prompt alone fills the context window
│   ├── UnknownAdapter    the model has no LoRA adapter of that name
│   └── Unsupported       a known value that this model or runtime cannot honour
├── Overloaded            the engine's queue is full, or a call has waited for too long
├── TooManyWaiting        too much work of one sender waits, or its grammars in use take too much memory
├── KeyRefused            a message lacks Triton's key, or a signature by it
├── EngineFailed          the runtime failed during this request
├── NotFinite             the model's numbers for this request are NaN or infinite
├── Unloading             the model is being unloaded, and the request's time is up
├── OutputStreamNotOpen   the output stream that a request names is not open
└── InternalError         anything unexpected; its text never reaches the client
"""

from __future__ import annotations

import logging
import re
from typing import ClassVar

logger = logging.getLogger(__name__)

LOAD_FAILURE = "does not load:"  # the reason follows in the stage's log


class StageError(Exception):
    """A request that a stage could not serve.

    Args:
        text: the value and the rule, for people.
        field: the wrong input, by its name in the tensor contract.
    """

    code: ClassVar[str] = "internal_error"
    triton_code: ClassVar[str] = "INTERNAL"  # a name in pb_utils.TritonError

    def __init__(self, text: str, field: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.field = field

    def message(self) -> str:
        """Return the message that travels through Triton: `[code] field: text`. Lone surrogates are replaced."""
        text = self.text.encode(errors="replace").decode()
        return f"[{self.code}] {self.field}: {text}" if self.field else f"[{self.code}] {text}"


class InvalidRequest(StageError):
    code = "invalid_value"
    triton_code = "INVALID_ARG"


class CannotContinue(InvalidRequest):
    code = "cannot_continue"


class PromptTooLong(InvalidRequest):
    code = "context_length_exceeded"


class UnknownAdapter(InvalidRequest):
    code = "adapter_not_found"


class Unsupported(InvalidRequest):
    code = "unsupported_value"


class Overloaded(StageError):
    code = "overloaded"
    triton_code = "UNAVAILABLE"


class TooManyWaiting(StageError):
    code = "too_many_waiting"
    triton_code = "UNAVAILABLE"


class KeyRefused(StageError):
    code = "key_refused"
    triton_code = "UNAVAILABLE"


class EngineFailed(StageError):
    code = "engine_failed"


class NotFinite(StageError):
    code = "not_finite"

    def __init__(self, text: str = "the model's numbers for it are not finite", field: str | None = None) -> None:
        super().__init__(text, field)


class Unloading(StageError):
    code = "unloading"
    triton_code = "UNAVAILABLE"


class OutputStreamNotOpen(StageError):
    code = "output_stream_not_open"
    triton_code = "NOT_FOUND"


class InternalError(StageError):
    def __init__(self, text: str = "internal error, see the server's log", field: str | None = None) -> None:
        super().__init__(text, field)


def stage_error(exc: BaseException, request_id: str = "") -> StageError:
    """Return the client's error for an exception, and log it.

    The log has a refusal without its text, and an unexpected exception in full. The client gets no text of the latter.
    """
    if not isinstance(exc, StageError):
        logger.error("unexpected exception while serving request_id=%s", request_id or "-", exc_info=exc)
        return InternalError()
    if isinstance(exc, InvalidRequest | Overloaded | TooManyWaiting):
        logger.info("refused: %s request_id=%s", exc.code, request_id or "-")
    return exc


_BY_CODE: dict[str, type[StageError]] = {
    error.code: error for error in (*StageError.__subclasses__(), *InvalidRequest.__subclasses__())
}
# Triton puts its own words before it.
_MESSAGE = re.compile(
    rf"\[(?P<code>{'|'.join(_BY_CODE)})\] (?:(?P<field>[A-Za-z_][\w.\[\]]*): )?(?P<text>.*)", re.DOTALL
)


def error_from_message(message: str) -> StageError | None:
    """Return the stage error inside a Triton error message; None for an error of Triton itself."""
    found = _MESSAGE.search(message)
    if found is None:
        return None
    return _BY_CODE[found["code"]](found["text"], found["field"])
