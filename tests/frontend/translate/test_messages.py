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
        ([], ""),
        ([text("a"), text("b")], "a\nb"),
        ([text(""), text("b")], "\nb"),
        ([text("what is"), IMAGE, text("here?")], "what is\n<image>\nhere?"),
    ],
)
def test_parts_are_joined_by_line_breaks(content: Any, expected: str) -> None:
    assert rendered({"role": "user", "content": content}) == [{"role": "user", "content": expected}]


TOOL = {"role": "tool", "content": "4", "tool_call_id": "call_1", "name": "sum"}
SILENT: dict[str, Any] = {"role": "assistant", "content": None}
REFUSAL = {"role": "assistant", "content": "I will not."}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (TOOL, TOOL),
        (SILENT, SILENT | {"content": ""}),
        (SILENT | {"tool_calls": []}, SILENT | {"content": ""}),
        (SILENT | {"content": [{"type": "refusal", "refusal": "I will not."}]}, REFUSAL),
        (SILENT | {"refusal": "I will not."}, REFUSAL),
        (SILENT | {"content": "", "refusal": "I will not."}, REFUSAL),
        (SILENT | {"content": [], "refusal": "I will not."}, REFUSAL),
        (SILENT | {"tool_calls": [CALL | {"type": None}]}, SILENT | {"content": "", "tool_calls": [CALL]}),
        (
            SILENT | {"content": "x", "function_call": CALL["function"]},
            SILENT | {"content": "x", "tool_calls": [CALL | {"id": "call_0"}]},
        ),
    ],
)
def test_each_message_reaches_the_template_in_one_form(message: dict[str, Any], expected: dict[str, Any]) -> None:
    assert rendered(USER, message)[1] == expected
