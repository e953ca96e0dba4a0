"""The answer to a request for a summary of its conversation: one item, which only this server reads."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from frontend.errors import ServerError
from frontend.output_parser.deltas import TextDelta
from frontend.protocol.response_objects import Compaction
from frontend.translate.reply import Event
from frontend.translate.responses_reply import ResponsesReply
from model_repository.contract.output import GenerationChunk


class SummaryReply(ResponsesReply):
    """Writes the answer to one request.

    Args:
        seal: returns the opaque form of a summary.
        further: see ResponsesReply.
    """

    def __init__(self, seal: Callable[[str], str], *further: Any) -> None:
        super().__init__(*further)
        self._seal = seal
        self._summary = ""

    def plain_part(self, index: int, chunk: GenerationChunk) -> str | None:
        """See Reply."""
        return None

    def events(self, index: int, chunk: GenerationChunk) -> Sequence[Event]:
        """Return the events of the last chunk; earlier ones have none."""
        if self._last is not None:
            return self._last
        self._summary += "".join(each.text for each in self._parser.read(chunk) if isinstance(each, TextDelta))
        if chunk.finish_reason is None:
            return []
        if not self._summary.strip():  # the conversation would be lost
            raise ServerError("The model wrote no summary")
        item = {
            "id": f"cmp_{secrets.token_hex(16)}",
            "type": "compaction",
            "encrypted_content": self._seal(self._summary),
        }
        self._output.append(item)
        return [
            {"type": "response.output_item.added", **self._index(), "item": item},
            {"type": "response.output_item.done", **self._index(), "item": item},
            {"type": "response.completed", "response": self._response("completed", chunk.usage)},
        ]


def compaction_of(response: Mapping[str, Any]) -> Compaction:
    """Return the answer of /v1/responses/compact."""
    return {
        "id": response["id"],
        "object": "response.compaction",
        "created_at": response["created_at"],
        "output": response["output"],
        "usage": response["usage"],
    }
