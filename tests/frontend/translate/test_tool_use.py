"""Tools, functions and how they are chosen: one form for the model."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.translate.requests import chat_to_requests
from model_repository.contract.request import ChatPrompt, ToolUse
from tests.frontend.bodies import TIME, WEATHER, chat
from tests.frontend.translate.test_requests import DEFAULTS, NAME


def tool_use_of(**fields: Any) -> ToolUse | None:
    (request,) = chat_to_requests(chat(**fields), NAME, DEFAULTS)
    prompt = request.prompt
    assert isinstance(prompt, ChatPrompt)
    return prompt.tool_use


TIME_TOOL = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"tools": []}, None),
        ({"tools": [WEATHER, TIME]}, ToolUse(tools=(WEATHER, TIME_TOOL))),
        ({"tools": [WEATHER], "tool_choice": "none"}, ToolUse(tools=(WEATHER,), choice="none")),
        ({"tools": [WEATHER], "tool_choice": "required"}, ToolUse(tools=(WEATHER,), choice="required")),
        (
            {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "get_time"}}},
            ToolUse(tools=(TIME_TOOL,), choice="function:get_time"),
        ),
        ({"tools": [WEATHER], "parallel_tool_calls": False}, ToolUse(tools=(WEATHER,), is_parallel=False)),
        ({"tools": [WEATHER], "parallel_tool_calls": True}, ToolUse(tools=(WEATHER,))),
        ({"functions": [TIME["function"]]}, ToolUse(tools=(TIME_TOOL,), is_parallel=False)),
        (
            {"functions": [TIME["function"]], "function_call": {"name": "get_time"}},
            ToolUse(tools=(TIME_TOOL,), choice="function:get_time", is_parallel=False),
        ),
    ],
)
def test_tools_and_functions_are_one(fields: dict[str, Any], expected: ToolUse | None) -> None:
    assert tool_use_of(**fields) == expected
