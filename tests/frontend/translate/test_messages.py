"""Messages of a chat as the model's template gets them."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.translate.requests import message_for_template
from tests.frontend.bodies import USER, chat

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
IMAGE = {"type": "image_url", "image_url": "data:image/png;base64,eA=="}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def rendered(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return [message_for_template(message) for message in chat(messages=list(messages)).messages]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("a", "a"),
        ("", ""),
        ([], ""),
        ([text("a"), text("b")], "a\nb"),
        ([text(""), text("b")], "\nb"),
        ([text("what is"), IMAGE, text("here?")], "what is\n<image>\nhere?"),
        ([IMAGE, IMAGE], "<image>\n<image>"),
    ],
)
def test_parts_are_joined_by_line_breaks(content: Any, expected: str) -> None:
    assert rendered({"role": "user", "content": content}) == [{"role": "user", "content": expected}]


@pytest.mark.parametrize(
    ("role", "expected"), [("developer", "system"), ("system", "system"), ("user", "user"), ("assistant", "assistant")]
)
def test_a_developer_speaks_as_the_system(role: str, expected: str) -> None:
    assert rendered({"role": role, "content": "x"}) == [{"role": expected, "content": "x"}]


def test_a_function_speaks_as_a_tool_by_its_name() -> None:
    function = {"role": "function", "content": "4", "name": "sum"}
    assert rendered(USER, function)[1] == {"role": "tool", "content": "4", "name": "sum"}


def test_names_and_tool_call_ids_reach_the_template() -> None:
    tool = {"role": "tool", "content": "4", "tool_call_id": "call_1", "name": "sum"}
    assert rendered(USER, tool)[1] == tool


def test_a_silent_assistant_says_an_empty_text() -> None:
    assert rendered(USER, {"role": "assistant", "content": None})[1] == {"role": "assistant", "content": ""}


def test_an_assistants_refusal_is_what_it_said() -> None:
    parts = [{"type": "refusal", "refusal": "I will not."}]
    assert rendered(USER, {"role": "assistant", "content": parts})[1]["content"] == "I will not."


@pytest.mark.parametrize("content", [None, "", []])
def test_a_refusal_in_the_field_that_answers_have_is_what_it_said(content: Any) -> None:
    message = {"role": "assistant", "content": content, "refusal": "I will not."}
    assert rendered(USER, message)[1] == {"role": "assistant", "content": "I will not."}


@pytest.mark.parametrize("call", [CALL, CALL | {"type": None}, {key: CALL[key] for key in ("id", "function")}])
def test_calls_of_earlier_turns_reach_the_template(call: dict[str, Any]) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call, CALL | {"id": "call_2"}]}
    expected = {"role": "assistant", "content": "", "tool_calls": [CALL, CALL | {"id": "call_2"}]}
    assert rendered(USER, message)[1] == expected


def test_the_deprecated_form_of_a_call_is_a_call() -> None:
    message = {"role": "assistant", "content": "x", "function_call": CALL["function"]}
    assert rendered(USER, message)[1] == {"role": "assistant", "content": "x", "tool_calls": [CALL | {"id": "call_0"}]}


def test_a_message_without_calls_has_no_empty_list_of_them() -> None:
    assert "tool_calls" not in rendered(USER, {"role": "assistant", "content": "x", "tool_calls": []})[1]
