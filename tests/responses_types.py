"""Answers of the Responses API, checked by the types of OpenAI's own client."""

from __future__ import annotations

from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.extra_fields import refuse_extra_fields

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
# Fields of OpenAI's document, and of its answers, that the client's type lacks.
_UNTYPED = {"store", "presence_penalty", "frequency_penalty"}


def checked_response(body: Any) -> Response:
    """Return a whole answer. It has the types of the client's, and no field that the client does not know."""
    response = Response.model_validate(body, strict=True)
    refuse_extra_fields(response, _UNTYPED)
    return response


def checked_response_event(body: Any) -> Any:
    """Return an event of a stream, as for a whole answer."""
    event = _EVENT.validate_python(body, strict=True)
    refuse_extra_fields(event, _UNTYPED)
    return event
