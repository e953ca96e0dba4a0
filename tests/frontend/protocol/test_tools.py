"""Tools and how they are chosen, in OpenAI's two forms."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.errors import InvalidRequest, UnsupportedValue, ValidationFailed
from frontend.protocol.chat import ChatCompletionRequest
from model_repository.contract.request import MAX_TOOLS_CHARS
from model_repository.contract.rules import MAX_TOOLS
from tests.frontend.bodies import CHAT, TIME, WEATHER, chat, refusal

TOOLS = {"tools": [WEATHER, TIME]}
FUNCTIONS = {"functions": [WEATHER["function"], TIME["function"]]}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("none", "none"),
        ("auto", "auto"),
        ("required", "required"),
        (named("get_time"), "function:get_time"),
    ],
)
def test_a_tool_choice_is_a_word_or_names_a_tool(choice: Any, words: str) -> None:
    request = chat(**TOOLS, tool_choice=choice)
    assert request.tool_choice is not None
    assert request.tool_choice.words() == words


@pytest.mark.parametrize(
    ("choice", "words"), [("none", "none"), ("auto", "auto"), ({"name": "get_time"}, "function:get_time")]
)
def test_a_function_call_is_a_tool_choice_by_its_old_name(choice: Any, words: str) -> None:
    request = chat(**FUNCTIONS, function_call=choice)
    assert request.function_call is not None
    assert request.function_call.words() == words


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": "x"}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [named("")]}, "tools[0].function.name"),
        ({"tools": [named("two words")]}, "tools[0].function.name"),
        ({"tools": [named("x" * 65)]}, "tools[0].function.name"),
        ({"tools": [named('a"b')]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": 1}}]}, "tools[0].function.strict"),
        ({"tools": [TIME] * (MAX_TOOLS + 1)}, "tools"),
        ({"functions": [TIME["function"]] * (MAX_TOOLS + 1)}, "functions"),
        ({"functions": [{}]}, "functions[0].name"),
        (TOOLS | {"tool_choice": "any"}, "tool_choice.type"),
        (TOOLS | {"tool_choice": 5}, "tool_choice"),
        (TOOLS | {"tool_choice": True}, "tool_choice"),
        (TOOLS | {"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
        (FUNCTIONS | {"function_call": "required"}, "function_call"),
        (FUNCTIONS | {"function_call": 5}, "function_call"),
        (FUNCTIONS | {"function_call": {}}, "function_call.function.name"),
    ],
)
def test_what_is_malformed_is_refused_by_place(fields: dict[str, Any], param: str) -> None:
    error = refusal(ChatCompletionRequest, CHAT | fields, validation_status=422)
    assert (type(error), error.status, error.param) == (ValidationFailed, 422, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": named("get_time")}, "tool_choice"),
        (TOOLS | {"tool_choice": named("other")}, "tool_choice"),
        (TOOLS | {"tool_choice": {"type": "function"}}, "tool_choice.function"),
        (TOOLS | {"tool_choice": {"type": "auto", "function": {"name": "get_time"}}}, "tool_choice.function"),
        (FUNCTIONS | {"function_call": {"name": "other"}}, "function_call"),
        ({"function_call": {"name": "get_time"}}, "function_call"),
        (TOOLS | FUNCTIONS, "functions"),
    ],
)
def test_a_choice_that_fits_no_tool_is_refused(fields: dict[str, Any], param: str) -> None:
    error = refusal(ChatCompletionRequest, CHAT | fields, validation_status=422)
    assert (type(error), error.status, error.param) == (InvalidRequest, 400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools"),
        (TOOLS | {"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice"),
        (TOOLS | {"tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice"),
    ],
)
def test_other_kinds_of_tools_are_not_served(fields: dict[str, Any], param: str) -> None:
    error = refusal(ChatCompletionRequest, CHAT | fields)
    assert (type(error), error.status, error.param) == (UnsupportedValue, 400, param)


@pytest.mark.parametrize("choice", ["none", "auto", None])
def test_without_tools_none_need_be_called(choice: Any) -> None:
    assert chat(tool_choice=choice).tool_names() == set()
    assert chat(tools=[], tool_choice=choice).tool_names() == set()
    assert chat(tools=None, functions=None).tool_names() == set()


def test_as_many_tools_as_may_be_offered() -> None:
    tools = [named(f"tool_{index}") for index in range(MAX_TOOLS)]
    assert len(chat(tools=tools).tool_names()) == MAX_TOOLS


def test_a_tool_reaches_the_template_whole() -> None:
    function = {"name": "f", "description": "adds", "parameters": {"type": "object", "required": ["a"]}}
    for strict in ({"strict": True}, {"strict": False}, {}):
        tools = chat(tools=[{"type": "function", "function": function | strict}]).tools
        assert tools is not None
        kept = strict if strict == {"strict": True} else {}
        assert tools[0].function.as_tool() == {"type": "function", "function": function | kept}


@pytest.mark.parametrize("field", ["tools", "functions"])
def test_schemas_of_tools_are_not_too_long(field: str) -> None:
    function = {"name": "f", "parameters": {"description": "x" * MAX_TOOLS_CHARS}}
    tool = function if field == "functions" else {"type": "function", "function": function}
    error = refusal(ChatCompletionRequest, CHAT | {field: [tool]})
    assert error.param == field and f"more than {MAX_TOOLS_CHARS}" in error.message


@pytest.mark.parametrize("parameters", [None, {}])
def test_a_tool_without_parameters_takes_an_empty_object(parameters: Any) -> None:
    tools = chat(tools=[{"type": "function", "function": {"name": "f", "parameters": parameters}}]).tools
    assert tools is not None
    assert tools[0].function.as_tool()["function"] == {"name": "f", "parameters": {"type": "object", "properties": {}}}
