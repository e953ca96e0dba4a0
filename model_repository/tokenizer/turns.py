"""Conversations that are too long lose their oldest turns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from model_repository.contract.request import IMAGE_MARKER, ChatPrompt


class Turns:
    """A conversation with its images. A turn begins with a message of the user.

    The instructions before the first turn always stay, and so does the last turn.

    Args:
        prompt: its messages are checked.
        images: one for each IMAGE_MARKER in the messages.
    """

    def __init__(self, prompt: ChatPrompt, images: tuple[bytes, ...]) -> None:
        self._prompt = prompt
        self._images = images
        self._starts = [at for at, message in enumerate(prompt.messages) if message["role"] == "user"] or [0]

    def from_turn(self, number: int) -> tuple[ChatPrompt, tuple[bytes, ...]]:
        """Return the conversation from a turn on, and its images."""
        first, start, messages = self._starts[0], self._starts[number], self._prompt.messages
        num_before, num_left_out = (
            sum(_content(message).count(IMAGE_MARKER) for message in part)
            for part in (messages[:first], messages[first:start])
        )
        images = self._images[:num_before] + self._images[num_before + num_left_out :]
        return replace(self._prompt, messages=messages[:first] + messages[start:], max_prompt_tokens=None), images

    def first_that_fits(
        self,
        max_tokens: int,
        max_bytes: int,
        lengths: Callable[[ChatPrompt], Sequence[int]],
        num_tokens: Callable[[ChatPrompt, tuple[bytes, ...]], int],
    ) -> int:
        """Return the first turn to keep, so that as many as possible fit.

        Args:
            max_bytes: of so many tokens.
            lengths: returns the tokens of each turn of a conversation, or slightly more.
            num_tokens: returns the tokens of a conversation.
        """
        last, number = len(self._starts) - 1, self._first_by_bytes(max_bytes)
        total = num_tokens(*self.from_turn(number))
        excess = total - max_tokens
        if excess <= 0 or number == last:
            return number
        num_turns = last + 1 - number
        each = lengths(self.from_turn(number)[0])
        if len(each) != num_turns:  # the template left out a turn
            each = [total // num_turns] * num_turns
        following = iter(each)
        while excess > 0 and number < last:
            while excess > 0 and number < last:
                excess -= next(following)
                number += 1
            excess = num_tokens(*self.from_turn(number)) - max_tokens
        return number

    def _first_by_bytes(self, max_bytes: int) -> int:
        """Return the first turn from which on the contents may have so few bytes."""
        sizes = [len(_content(message).encode("utf-8", "surrogatepass")) for message in self._prompt.messages]
        excess = sum(sizes) - max_bytes
        for number, (start, end) in enumerate(itertools.pairwise(self._starts)):
            if excess <= 0:
                return number
            excess -= sum(sizes[start:end])
        return len(self._starts) - 1


def _content(message: Mapping[str, Any]) -> str:
    content: str = message.get("content") or ""
    return content
