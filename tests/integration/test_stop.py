"""Stop sequences: exact at every cut, never leaked in part, and the end of the generation."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me a story about a cat."}]


@pytest.fixture(scope="module")
def story(client: OpenAI) -> str:
    """The whole answer, several hundred tokens with multi-byte characters."""
    answer = client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0, max_tokens=1000)
    text = answer.choices[0].message.content
    assert text is not None and len(text) > 100 and not text.isascii()
    return text


def stops(story: str) -> list[list[str]]:
    """Stop texts inside a token, across tokens, around a multi-byte character, several at once, and an absent one."""
    index = next(index for index, character in enumerate(story) if ord(character) > 0x2FF)
    absent = story[50:60] + "\N{SNOWMAN}"  # its beginning occurs, and is held back for a while
    return [[story[36]], [story[63:83]], [story[index - 1 : index + 2]], [story[90:96], story[40:46]], [absent]]


def test_the_text_and_the_stream_end_exactly_before_the_first_stop(client: OpenAI, story: str) -> None:
    fields: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "temperature": 0, "max_tokens": 1000}
    for each in stops(story):
        expected = story[: min(story.index(stop) if stop in story else len(story) for stop in each)]
        answer = client.chat.completions.create(**fields, stop=each)
        assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (expected, "stop"), each
        stream = client.chat.completions.create(**fields, stop=each, stream=True)
        pieces = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
        assert "".join(pieces) == expected, each
