"""Answers of the Messages API, checked by the types of Anthropic's own client."""

from __future__ import annotations

from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.extra_fields import refuse_extra_fields

_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def checked_message(body: Any) -> Message:
    """Return a whole answer. It has the types of the client's, and no field that the client does not know."""
    message = Message.model_validate(body, strict=True)
    refuse_extra_fields(message)
    return message


def checked_event(body: Any) -> Any:
    """Return an event of a stream, as for a whole answer. The client drops pings before it checks types."""
    if body == {"type": "ping"}:
        return None
    event = _EVENT.validate_python(body, strict=True)
    refuse_extra_fields(event)
    return event
