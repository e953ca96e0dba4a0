"""What the two kinds of reply have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from frontend.protocol.answers import ChatCompletion, ChatCompletionChunk, Completion
from model_repository.contract.output import GenerationChunk

type Event = ChatCompletionChunk | Completion


class Reply(Protocol):
    """How one request is answered, in the words of its endpoint."""

    id: str  # the completion's name, the same in all its chunks
    num_per_prompt: int  # completions that are drawn of each prompt
    is_plain: bool  # a chunk that is nothing but text is one event, always the same one but for the text

    def opening(self, first: GenerationChunk) -> Sequence[Event]:
        """Return the events before the first chunk of all."""

    def events(self, index: int, chunk: GenerationChunk) -> Sequence[Event]:
        """Return the events that tell of a chunk of a choice; after the last one of all, also what closes it."""

    def whole(self, chunks: Sequence[GenerationChunk]) -> ChatCompletion | Completion:
        """Return the answer of a request that does not stream: one chunk for each completion that was drawn."""
