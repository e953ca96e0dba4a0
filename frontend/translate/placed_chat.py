"""Chats that bodies of other APIs mean, with the places of their parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from frontend.errors import InvalidRequest
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.reading import error_from_validation
from frontend.translate.places import Places

type Placed = tuple[dict[str, Any], str]  # a part of a chat's message, and its place in the client's body


class PlacedMessages(list[dict[str, Any]]):
    """The messages of a chat that another API's body means.

    Args:
        places: gets the places of their parts.
    """

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places

    def write(
        self, role: str, place: str, parts: Sequence[Placed], calls: Sequence[Placed] = (), **fields: Any
    ) -> None:
        """Add a message.

        Args:
            calls: of tools; the place is that of the name.
            fields: others of the message.
        """
        ours = f"messages[{len(self)}]"
        self._places[ours] = place
        for name, placed in (("content", parts), ("tool_calls", calls)):
            for index, (_, where) in enumerate(placed):
                self._places[f"{ours}.{name}[{index}]"] = where
        content, tool_calls = [part for part, _ in parts], [call for call, _ in calls]
        self.append({"role": role, "content": content, "tool_calls": tool_calls or None, **fields})


def chat_from(fields: dict[str, Any], places: Places) -> ChatCompletionRequest:
    """Return the chat with these fields, whose places are known.

    Raises:
        InvalidRequest: a rule of chats is broken.
    """
    try:
        chat = ChatCompletionRequest.model_validate(fields)
    except ValidationError as exc:
        error = error_from_validation(exc)
        raise InvalidRequest(error.message, param=error.param) from exc
    places.add(chat)
    return chat
