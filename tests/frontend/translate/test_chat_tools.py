"""Answers that call tools: the same message whole and streamed, however the text is cut."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_repository.contract.output import FinishReason
from model_repository.tool_formats import TOOL_FORMATS
from tests.frontend.bodies import TIME, WEATHER
from tests.frontend.protocol.test_tools import allowed, custom
from tests.frontend.translate.chat_events import events_of, pieces_of, put_together, reply_to, whole
from tests.parsed_calls import parse_tool_calls

TOOLS: dict[str, Any] = {"tools": [WEATHER, TIME]}
FUNCTIONS: dict[str, Any] = {"functions": [WEATHER["function"], TIME["function"]]}
NAMED = {"tool_choice": {"type": "function", "function": {"name": "get_time"}}}
CALLS = [("get_weather", '{"city": "Zürich 🙂"}'), ("get_time", "{}")]
FORMATS = pytest.mark.parametrize("tool_format", TOOL_FORMATS)


def text_of(*calls: tuple[str, str], tool_format: str = "hermes") -> str:
    return TOOL_FORMATS[tool_format].calls_text(calls)


def streamed(texts: list[str], reason: FinishReason = FinishReason.STOP, **fields: Any) -> dict[str, Any]:
    """Return a client's form of a stream of one choice."""
    reply = reply_to(stream=True, **fields)
    return put_together(events_of(reply, [(0, piece) for piece in pieces_of(texts, reason)]))


def answered(text: str, reason: FinishReason = FinishReason.STOP, **fields: Any) -> dict[str, Any]:
    """Return the only choice of a whole answer."""
    (choice,) = whole(reply_to(**fields), *pieces_of([text], reason))["choices"]
    return {**choice}


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without the ids of its calls."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return {"content": message["content"] or None, "calls": calls, "function_call": message.get("function_call")}


def cut(text: str, places: set[int]) -> list[str]:
    ends = sorted({0, len(text)} | {place for place in places if place < len(text)})
    return [text[start:end] for start, end in itertools.pairwise(ends)] or [text]


@FORMATS
@pytest.mark.parametrize(
    "choice",
    [{"tool_choice": "required"}, NAMED, {"tool_choice": allowed("required", "get_time")}],
    ids=["required", "named", "allowed"],
)
def test_a_forced_call_that_was_cut_in_its_head_shows_no_markup(tool_format: str, choice: dict[str, Any]) -> None:
    text = text_of(("get_time", "{}"), tool_format=tool_format)
    broken = text[: text.index("get_")]
    answer = answered(broken, FinishReason.LENGTH, tool_call_format=tool_format, **TOOLS, **choice)
    assert (answer["finish_reason"], answer["message"]["content"] or None) == ("length", None)


@FORMATS
@pytest.mark.parametrize("fields", [TOOLS, FUNCTIONS], ids=["tools", "functions"])
def test_a_call_that_a_stop_sequence_cut_is_no_call_to_carry_out(tool_format: str, fields: dict[str, Any]) -> None:
    text = text_of(("get_weather", '{"city": "Paris"}'), tool_format=tool_format)
    broken = text[: text.index("ris")]
    assert answered(broken, tool_call_format=tool_format, **fields)["finish_reason"] == "stop"
    assert streamed(list(broken), tool_call_format=tool_format, **fields)["finish_reasons"] == ["stop"]
    assert answered(text, tool_call_format=tool_format, **fields)["finish_reason"] != "stop"


@pytest.mark.parametrize("fields", [TOOLS, FUNCTIONS], ids=["tools", "functions"])
def test_a_call_without_its_outer_marker_names_a_tool_of_the_request(fields: dict[str, Any]) -> None:
    for name, is_call in (("get_time", True), ("example", False)):
        text = f"I look.\n\n<function={name}>\n</function>\n</tool_call>"
        for choice in (
            answered(text, tool_call_format="qwen_xml", **fields),
            streamed(list(text), tool_call_format="qwen_xml", **fields),
        ):
            message = choice.get("message", choice)
            assert message["content"] == ("I look." if is_call else text)
            assert bool(message.get("tool_calls") or message.get("function_call")) is is_call


def test_ids_of_calls_are_their_own_and_the_same_within_a_stream() -> None:
    text = text_of(*CALLS)
    messages = [answered(text, **TOOLS)["message"], streamed(list(text), **TOOLS)["message"]]
    ids = [call["id"] for message in messages for call in message["tool_calls"]]
    assert len(set(ids)) == 4
    assert all(len(each) >= 9 for each in ids)  # Mistral's templates need nine characters


def test_only_the_first_delta_of_a_call_has_id_type_and_name() -> None:
    reply = reply_to(stream=True, **TOOLS)
    events = events_of(reply, [(0, piece) for piece in pieces_of(list(text_of(CALLS[0])))])
    deltas = [call for event in events for call in event["choices"][0]["delta"].get("tool_calls", ())]
    first, *rest = deltas
    assert (first["index"], first["type"], first["function"]) == (
        0,
        "function",
        {"name": "get_weather", "arguments": ""},
    )
    assert rest
    assert all(set(call) == {"index", "function"} and set(call["function"]) == {"arguments"} for call in rest)


@pytest.mark.parametrize(
    ("fields", "reason", "expected"),
    [
        (TOOLS, "stop", "tool_calls"),
        (TOOLS | {"tool_choice": "auto"}, "stop", "tool_calls"),
        (TOOLS | {"tool_choice": "required"}, "stop", "tool_calls"),
        (TOOLS | NAMED, "stop", "stop"),
        ({"tools": [custom("get_time")], "tool_choice": custom("get_time")}, "stop", "tool_calls"),
        (FUNCTIONS, "stop", "function_call"),
        (FUNCTIONS | {"function_call": {"name": "get_time"}}, "stop", "stop"),
        (TOOLS, "length", "length"),
        (FUNCTIONS, "length", "length"),
    ],
)
def test_the_finish_reason_asks_for_a_call_or_not(fields: dict[str, Any], reason: str, expected: str) -> None:
    text = text_of(CALLS[1])
    assert answered(text, FinishReason(reason), **fields)["finish_reason"] == expected
    assert streamed(list(text), FinishReason(reason), **fields)["finish_reasons"] == [expected]


@FORMATS
@given(text=st.text(), is_ascii=st.booleans(), places=st.sets(st.integers(1, 300)))
def test_the_input_of_a_custom_tool_is_decoded_however_it_is_cut(
    tool_format: str, text: str, is_ascii: bool, places: set[int]
) -> None:
    notation = TOOL_FORMATS[tool_format].notation
    if notation is not None and notation.quote != '"':  # a text ends at its mark, and has no escapes
        text = text.replace("<", "(").strip()
    call = text_of(("run", json.dumps({"input": text}, ensure_ascii=is_ascii)), tool_format=tool_format)
    fields: dict[str, Any] = {"tools": [TIME, custom("run")], "tool_call_format": tool_format}
    expected = {"type": "custom", "custom": {"name": "run", "input": text}}
    for choice in (answered(call, **fields), streamed(cut(call, places), **fields)):
        [made] = choice["message"]["tool_calls"]
        assert made == {"id": made["id"]} | expected


def test_deltas_of_a_custom_call_have_openais_form() -> None:
    reply = reply_to(stream=True, tools=[custom("run"), TIME])
    text = text_of(("run", '{"input": "a\\nb"}'), ("get_time", "{}"))
    deltas = [
        call
        for event in events_of(reply, [(0, piece) for piece in pieces_of(list(text))])
        for call in event["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert deltas[0].pop("id").startswith("call_")
    assert deltas[:4] == [
        {"index": 0, "type": "custom", "custom": {"name": "run", "input": ""}},
        *({"index": 0, "custom": {"input": piece}} for piece in "a\nb"),
    ]
    assert [each.get("type") for each in deltas if each["index"] == 1] == ["function", None, None]


def test_the_input_of_a_cut_call_ends_where_the_text_does() -> None:
    text = text_of(("run", '{"input": "a\\u00e9"}'))
    for end, expected in ((text.index("input"), ""), (text.index("00e9"), "a"), (text.index('"}'), "aé")):
        choice = answered(text[:end], FinishReason.LENGTH, tools=[custom("run")])
        assert choice["message"]["tool_calls"][0]["custom"]["input"] == expected
        assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("fields", [{}, {"tools": []}, TOOLS | {"tool_choice": "none"}])
def test_where_no_tool_may_be_called_the_text_is_the_text(fields: dict[str, Any]) -> None:
    choice = answered(text_of(*CALLS), **fields)
    assert choice["message"]["content"] == text_of(*CALLS)
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


def test_the_deprecated_form_has_one_call() -> None:
    # Two calls became one, with the arguments of both.
    for message in (
        answered(text_of(*CALLS), **FUNCTIONS)["message"],
        streamed(list(text_of(*CALLS)), **FUNCTIONS)["message"],
    ):
        assert message["function_call"] == {"name": "get_weather", "arguments": CALLS[0][1]}
        assert message["content"] is None
        assert "tool_calls" not in message


@pytest.mark.parametrize(
    ("text", "reason", "content"),
    [
        ("Just <b>text</b>.", "stop", "Just <b>text</b>."),
        ("Hi <", "stop", "Hi <"),
        ("Hi <tool_call>", "stop", "Hi <tool_call>"),
        ('Hi <tool_call>\n{"name": "get_', "stop", 'Hi <tool_call>\n{"name": "get_'),
        ("Let me see. " + text_of(CALLS[0]), "stop", "Let me see."),
        ("Hi <", "length", "Hi <"),
        ("Hi <t", "length", "Hi"),  # markup of a call that was cut is no content
        ("Hi <tool_call>", "length", "Hi"),
        ('<tool_call>\n{"name": "g', "length", ""),
    ],
)
def test_text_beside_calls_is_content(text: str, reason: str, content: str) -> None:
    assert answered(text, FinishReason(reason), **TOOLS)["message"]["content"] == content
    assert (streamed(list(text), FinishReason(reason), **TOOLS)["message"]["content"] or "") == content


def test_each_choice_has_a_parser_of_its_own() -> None:
    reply = reply_to(stream=True, n=2, **TOOLS)
    first, second = pieces_of(list(text_of(CALLS[0]))), pieces_of(list("plain text, as long as a call" * 2))
    both = itertools.zip_longest(first, second)
    events = events_of(reply, [(index, piece) for pair in both for index, piece in enumerate(pair) if piece])
    assert without_ids(put_together(events, 0)["message"])["calls"] == [{"name": CALLS[0][0], "arguments": CALLS[0][1]}]
    assert put_together(events, 1)["message"]["content"] == "plain text, as long as a call" * 2
    assert [put_together(events, index)["finish_reasons"] for index in (0, 1)] == [["tool_calls"], ["stop"]]


JSON_TEXTS = st.dictionaries(st.text(max_size=6), st.text(max_size=10) | st.integers() | st.none(), max_size=3).map(
    lambda arguments: json.dumps(arguments, ensure_ascii=False)
)
CONTENTS = st.sampled_from(["", "Let me see. ", "a < b\n", "<tool", "<tool_call", "é🙂 "]) | st.text(max_size=12)
ANSWERS = st.tuples(
    CONTENTS, st.lists(st.tuples(st.sampled_from(["get_weather", "get_time"]), JSON_TEXTS), max_size=3)
).map(lambda answer: answer[0] + text_of(*answer[1]))


@given(text=ANSWERS, places=st.sets(st.integers(1, 300)), end=st.none() | st.integers(0, 300))
@pytest.mark.parametrize("offered", [TOOLS, FUNCTIONS], ids=["tools", "functions"])
def test_streamed_deltas_concatenate_to_the_message(
    offered: dict[str, Any], text: str, places: set[int], end: int | None
) -> None:
    reason = FinishReason.STOP if end is None else FinishReason.LENGTH
    text = text[:end]
    choice = streamed(cut(text, places), reason, logprobs=True, return_token_ids=True, **offered)
    expected = answered(text, reason, logprobs=True, **offered)
    assert without_ids(choice["message"]) == without_ids(expected["message"])
    assert choice["finish_reasons"] == [expected["finish_reason"]]
    content, calls = parse_tool_calls("hermes", text, is_cut=end is not None)
    assert without_ids(expected["message"])["content"] == (content or None)
    if offered is TOOLS:
        expected_calls = [{"name": call.name, "arguments": call.arguments} for call in calls]
        assert without_ids(expected["message"])["calls"] == expected_calls
    # What the parser holds back has its tokens all the same.
    assert bytes(byte for item in choice["logprobs"] for byte in item["bytes"]).decode() == text
    assert choice["token_ids"] == list(range(len(cut(text, places))))
