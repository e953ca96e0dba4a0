"""Stop sequences: exact at every cut, never leaked in part, and the end of the generation."""

from __future__ import annotations

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me a story about a cat."}]
LENGTHS = (1, 2, 3, 7, 20)


@pytest.fixture(scope="module")
def story(client: OpenAI) -> str:
    """The whole answer, several hundred tokens with multi-byte characters."""
    answer = client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0, max_tokens=1000)
    text = answer.choices[0].message.content
    assert text is not None and len(text) > 100 and not text.isascii()
    return text


def completion(client: OpenAI, stop: str | list[str]) -> tuple[str, str, int]:
    """Return text, finish reason and number of tokens."""
    answer = client.chat.completions.create(model="demo", messages=MESSAGES, temperature=0, max_tokens=1000, stop=stop)
    assert answer.usage is not None
    return answer.choices[0].message.content or "", answer.choices[0].finish_reason, answer.usage.completion_tokens


def streamed(client: OpenAI, stop: str | list[str]) -> list[str]:
    """Return the text's pieces."""
    stream = client.chat.completions.create(
        model="demo", messages=MESSAGES, temperature=0, max_tokens=1000, stop=stop, stream=True
    )
    return [choice.delta.content or "" for chunk in stream for choice in chunk.choices]


def cuts(story: str) -> list[str]:
    """Stops of several lengths from all over the story: inside tokens, over their borders, in and around emoji."""
    starts = list(range(5, min(len(story) - 20, 200), 29))
    starts += [max(0, index - 1) for index, character in enumerate(story) if ord(character) > 0x2FF][:4]
    return sorted({story[start : start + length] for start in starts for length in LENGTHS})


def test_the_text_is_cut_exactly_before_the_stop(client: OpenAI, story: str) -> None:
    for stop in cuts(story):
        expected = story[: story.index(stop)]
        text, finish_reason, _ = completion(client, stop)
        assert (text, finish_reason) == (expected, "stop"), f"stop={stop!r}"


def test_the_stream_never_leaks_a_part_of_the_stop(client: OpenAI, story: str) -> None:
    for stop in cuts(story)[::3]:
        assert "".join(streamed(client, stop)) == story[: story.index(stop)], f"stop={stop!r}"


def test_of_several_stops_the_first_complete_one_ends_it(client: OpenAI, story: str) -> None:
    late, early = story[90:96], story[40:46]
    text, finish_reason, _ = completion(client, [late, early, "\N{SNOWMAN} is not in it"])
    assert (text, finish_reason) == (story[: min(story.index(early), story.index(late))], "stop")


def test_generation_ends_at_the_stop(client: OpenAI, story: str) -> None:
    _, _, whole = completion(client, "\N{SNOWMAN} is not in it")
    _, _, stopped = completion(client, story[40:46])
    assert stopped < whole / 2


def test_a_stop_that_does_not_occur_changes_nothing(client: OpenAI, story: str) -> None:
    almost = story[50:60] + "\N{SNOWMAN}"  # its beginning occurs, and is held back for a while
    assert "".join(streamed(client, almost)) == story
    assert completion(client, almost)[:2] == (story, "stop")
