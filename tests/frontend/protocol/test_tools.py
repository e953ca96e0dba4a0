"""Tools and how they are chosen, in OpenAI's two forms."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.errors import InvalidRequest, ValidationFailed
from frontend.protocol.chat import ChatCompletionRequest
from model_repository.contract.rules import MAX_TOOLS, MAX_TOOLS_CHARS
from tests.frontend.bodies import CHAT, TIME, WEATHER, chat, refusal

TOOLS = {"tools": [WEATHER, TIME]}
FUNCTIONS = {"functions": [WEATHER["function"], TIME["function"]]}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def custom(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": name} | fields}


def grammar(definition: str, syntax: str = "regex") -> dict[str, Any]:
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named(name) for name in names]}}


MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [5]}, "tools[0]"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
    *(({"tools": [named(name)]}, "tools[0].function.name") for name in ("", "two words", "x" * 129, 'a"b')),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
    ({"tools": [TIME] * (MAX_TOOLS + 1)}, "tools"),
    ({"functions": [TIME["function"]] * (MAX_TOOLS + 1)}, "functions"),
    (TOOLS | {"tool_choice": "any"}, "tool_choice.type"),
    (TOOLS | {"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
    (TOOLS | {"tool_choice": allowed("none", "get_time")}, "tool_choice.allowed_tools.mode"),
    (TOOLS | {"tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
    (FUNCTIONS | {"function_call": "required"}, "function_call"),
    ({"tools": [custom("two words")]}, "tools[0].custom.name"),
    ({"tools": [custom("x", format={"type": "json"})]}, "tools[0].custom.format.type"),
    ({"tools": [custom("x", format=grammar("a", "ebnf"))]}, "tools[0].custom.format.grammar.syntax"),
    ({"tools": [custom("x", format=grammar(""))]}, "tools[0].custom.format.grammar.definition"),
    ({"tools": [custom("x", format=grammar("a" * 5001))]}, "tools[0].custom.format.grammar.definition"),
]
UNMATCHED: list[tuple[dict[str, Any], str]] = [
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": named("get_time")}, "tool_choice"),
    (TOOLS | {"tool_choice": named("other")}, "tool_choice"),
    (TOOLS | {"tool_choice": {"type": "function"}}, "tool_choice.function"),
    (TOOLS | {"tool_choice": allowed("auto", "get_time", "other")}, "tool_choice"),
    (TOOLS | {"tool_choice": allowed("auto", "get_time") | {"type": "auto"}}, "tool_choice.allowed_tools"),
    (FUNCTIONS | {"function_call": {"name": "other"}}, "function_call"),
    ({"function_call": {"name": "get_time"}}, "function_call"),
    (TOOLS | FUNCTIONS, "functions"),
    ({"tools": [{"type": "custom"}]}, "tools[0].custom"),
    ({"tools": [TIME | {"custom": {"name": "x"}}]}, "tools[0].custom"),
    ({"tools": [custom("x", format={"type": "grammar"})]}, "tools[0].custom.format.grammar"),
    ({"tools": [custom("get_time"), TIME]}, "tools"),
    ({"tools": [custom("x"), TIME], "tool_choice": custom("get_time")}, "tool_choice"),
    ({"tools": [custom("x"), TIME], "tool_choice": named("x")}, "tool_choice"),
    ({"tools": [custom("x"), TIME], "tool_choice": allowed("auto", "x")}, "tool_choice"),
]


@pytest.mark.parametrize(
    ("fields", "param", "kind", "status"),
    [
        *((*each, ValidationFailed, 422) for each in MALFORMED),
        *((*each, InvalidRequest, 400) for each in UNMATCHED),
    ],
)
def test_a_bad_tool_or_choice_is_refused_by_place(
    fields: dict[str, Any], param: str, kind: type[Exception], status: int
) -> None:
    error = refusal(ChatCompletionRequest, CHAT | fields, validation_status=422)
    assert (type(error), error.status, error.param) == (kind, status, param)


@pytest.mark.parametrize("choice", ["none", "auto", None])
def test_without_tools_a_choice_of_none_or_auto_is_accepted(choice: Any) -> None:
    assert chat(tool_choice=choice).tool_names() == set()
    assert chat(tools=[], tool_choice=choice).tool_names() == set()
    assert chat(tools=None, functions=None).tool_names() == set()


def test_as_many_tools_as_may_be_offered() -> None:
    tools = [named(f"tool_{index}") for index in range(MAX_TOOLS)]
    assert len(chat(tools=tools).tool_names()) == MAX_TOOLS


@pytest.mark.parametrize(("field", "tool"), [("tools", TIME), ("functions", TIME["function"])])
def test_the_number_of_too_many_tools_comes_first(field: str, tool: dict[str, Any]) -> None:
    error = refusal(ChatCompletionRequest, CHAT | {field: [tool] * (MAX_TOOLS + 1)})
    assert error.message == f"{field}: {MAX_TOOLS + 1} items: at most {MAX_TOOLS} are allowed"


def test_a_tool_reaches_the_template_whole() -> None:
    function = {"name": "f", "description": "adds", "parameters": {"type": "object", "required": ["a"]}}
    for strict in ({"strict": True}, {"strict": False}, {}):
        tools = chat(tools=[{"type": "function", "function": function | strict}]).tools
        assert tools is not None
        kept = strict if strict == {"strict": True} else {}
        assert tools[0].definition.as_tool() == {"type": "function", "function": function | kept}


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
    assert tools[0].definition.as_tool()["function"] == {
        "name": "f",
        "parameters": {"type": "object", "properties": {}},
    }


@pytest.mark.parametrize(
    ("form", "kept"),
    [(None, {}), ({"type": "text"}, {}), (grammar('start: "a"', "lark"), {"format": grammar('start: "a"', "lark")})],
)
def test_a_custom_tool_reaches_the_tokenizer_stage_as_it_is(form: Any, kept: dict[str, Any]) -> None:
    (tool,) = chat(tools=[custom("run", description="runs", format=form)]).offered_tools()
    assert tool.as_tool() == {"type": "custom", "custom": {"name": "run", "description": "runs"} | kept}


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (custom("run"), "function:run"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [custom("run")]}}, "required"),
    ],
)
def test_a_custom_tool_is_chosen_as_a_function_is(choice: dict[str, Any], words: str) -> None:
    request = chat(tools=[TIME, custom("run")], tool_choice=choice)
    assert request.tool_choice is not None
    assert (request.tool_choice.words(), request.must_call()) == (words, True)
    assert request.tool_choice.types() == {"run": "custom"}


def test_a_past_call_of_a_custom_tool_reaches_the_template_as_that_of_the_function() -> None:
    call = {"id": "call_1", "type": "custom", "custom": {"name": "run", "input": 'é "\n'}}
    (message,) = chat(messages=[{"role": "assistant", "tool_calls": [call]}]).messages
    assert message.tool_calls is not None
    function = {"name": "run", "arguments": '{"input": "é \\"\\n"}'}
    assert message.tool_calls[0].for_template() == {"id": "call_1", "type": "function", "function": function}
