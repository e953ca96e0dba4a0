"""The thinking of a model beside its answer: the same message whole and streamed, however the text is cut."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.translate.chat_reply import ChatReply
from frontend.triton.models import ModelName
from model_repository.contract.output import FinishReason, GenerationChunk, Usage
from model_repository.tool_formats import HERMES
from tests.fakes import served_model
from tests.frontend.bodies import WEATHER, chat
from tests.frontend.translate.chat_events import events_of, put_together, whole

USAGE = Usage(num_input_tokens=3, num_output_tokens=9, num_reasoning_tokens=6)
NAME = ModelName(requested="r", model=served_model(reasoning_format="think"))
CALL = HERMES.calls_text([("get_weather", "{}")])


def chunks_of(thinking: str, answer: str, places: set[int], reason: FinishReason) -> list[GenerationChunk]:
    """Return a completion in pieces as the engine makes them: each marked, and no cut in a marker of the thinking."""
    text = thinking + answer
    for marker in re.finditer("</?think>", thinking):
        places = places - set(range(marker.start() + 1, marker.end()))
    ends = sorted({0, len(text)} | {place for place in places if place < len(text)})
    pieces = list(itertools.pairwise(ends)) or [(0, 0)]
    return [
        GenerationChunk(
            text=text[start:end],
            spans=spans_of(thinking, start, end, is_closed=bool(answer) or thinking.endswith("</think>")),
            finish_reason=reason if end == len(text) else None,
            usage=USAGE if end == len(text) else None,
        )
        for start, end in pieces
    ]


def spans_of(thinking: str, start: int, end: int, *, is_closed: bool) -> tuple[int, ...]:
    """Return the spans of a piece of a completion that begins with thinking."""
    num_thinking = min(end, len(thinking)) - start
    if num_thinking <= 0:
        return ()
    is_end = end >= len(thinking) and is_closed
    return (num_thinking, end - start - num_thinking) if is_end else (num_thinking,)


def messages(
    thinking: str, answer: str, places: set[int], reason: FinishReason = FinishReason.STOP, **fields: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the message as a whole, and as a client puts the stream together."""
    [last] = chunks_of(thinking, answer, set(), reason)
    message = dict(whole(ChatReply(chat(**fields), NAME, 1), last)["choices"][0]["message"])
    events = events_of(
        ChatReply(chat(stream=True, **fields), NAME, 1),
        [(0, each) for each in chunks_of(thinking, answer, places, reason)],
    )
    streamed = dict(put_together(events)["message"])
    deltas = [piece["delta"] for event in events for piece in event["choices"]]
    for field in ("reasoning", "reasoning_content"):
        if text := "".join(delta.get(field, "") for delta in deltas):  # type: ignore[misc]
            streamed[field] = text
    kept = ("content", "reasoning", "reasoning_content")
    return {key: message.get(key) or None for key in kept}, {key: streamed.get(key) for key in kept}


PLACES = st.sets(st.integers(1, 60))
FEW = settings(max_examples=40)


@pytest.mark.parametrize(
    ("thinking", "answer", "reasoning", "content"),
    [
        ("<think>\nHm. \n\nYes.\n</think>", "\n\nNo. <think>", "Hm. \n\nYes.", "No. <think>"),
        ("Hm.</think>", "No.", "Hm.", "No."),  # the template wrote the begin marker
        ("\n <think> \n\n </think>", "\n No.\n", None, "No.\n"),
        ("<think>Hm. <", "", "Hm. <", None),  # cut in the thinking
        ("<think>a <tool_call> b</think>", "c", "a <tool_call> b", "c"),
        ("", " <think>\nx</think>", None, " <think>\nx</think>"),  # text that the engine does not mark
    ],
)
@FEW
@given(places=PLACES)
def test_thinking_and_answer_are_separated(
    thinking: str, answer: str, reasoning: str | None, content: str | None, places: set[int]
) -> None:
    for message in messages(thinking, answer, places, tools=[WEATHER]):
        assert message == {"content": content, "reasoning": reasoning, "reasoning_content": reasoning}


@FEW
@given(places=PLACES)
def test_a_call_in_the_thinking_is_thinking_and_one_behind_it_is_a_call(places: set[int]) -> None:
    chunks = chunks_of(f"{CALL}</think>", f"\n{CALL}", places, FinishReason.STOP)
    reply = ChatReply(chat(stream=True, tools=[WEATHER]), NAME, 1)
    choice = put_together(events_of(reply, [(0, each) for each in chunks]))
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["get_weather"]
    assert (choice["message"]["content"], choice["finish_reasons"]) == (None, ["tool_calls"])


def test_thinking_is_counted_and_left_out_on_request() -> None:
    for include in (True, False):
        [chunk] = chunks_of("Hm.</think>", "No.", set(), FinishReason.STOP)
        answer = whole(ChatReply(chat(include_reasoning=include), NAME, 1), chunk)
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 6
        assert ("reasoning" in answer["choices"][0]["message"]) is include
        assert answer["choices"][0]["message"]["content"] == "No."
