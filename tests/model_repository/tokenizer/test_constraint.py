"""The form that a completion must have."""

from __future__ import annotations

from typing import Any

import pytest

from model_repository.errors import InvalidRequest, Unsupported
from model_repository.generation import (
    ChatPrompt,
    GenerationRequest,
    Guide,
    GuideKind,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
    ToolUse,
)
from model_repository.guides.grammar import rule_of
from model_repository.guides.json_schema import enforceable_schema
from model_repository.tokenizer.constraint import callable_tools, constraint
from model_repository.tokenizer.tool_guide import tool_guide
from model_repository.tool_formats import HERMES

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
GUIDE = Guide(GuideKind.REGEX, "a+")


def tools(choice: str, tool: Any = TOOL) -> ChatPrompt:
    return ChatPrompt(({"role": "user", "content": "hi"},), tool_use=ToolUse(tools=(tool,), choice=choice))


def request(prompt: Any, guide: Guide | None = None, **others: Any) -> GenerationRequest:
    return GenerationRequest(prompt=prompt, max_tokens=1, sampling=SamplingParams(), guide=guide, **others)


def refusal(*args: Any, **others: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        constraint(request(*args, **others), HERMES)
    return caught.value.message()


@pytest.mark.parametrize("prompt", [TextPrompt("a"), TokenPrompt((1,)), ChatPrompt(()), tools("none")])
@pytest.mark.parametrize("guide", [None, GUIDE])
def test_without_tools_to_call_the_guide_holds(prompt: Any, guide: Guide | None) -> None:
    asked = request(prompt, guide)
    assert constraint(asked, HERMES) == guide
    assert callable_tools(asked) is None


@pytest.mark.parametrize("choice", ["auto", "required", "function:add"])
def test_tools_say_what_may_be_answered(choice: str) -> None:
    prompt = tools(choice)
    asked = request(prompt)
    assert prompt.tool_use is not None
    assert constraint(asked, HERMES) == tool_guide(prompt.tool_use, HERMES, enforceable_schema)
    assert callable_tools(asked) == prompt.tool_use


@pytest.mark.parametrize("choice", ["required", "function:add"])
def test_where_a_tool_must_be_called_the_guide_has_nothing_to_hold_for(choice: str) -> None:
    assert constraint(request(tools(choice), GUIDE), HERMES) == constraint(request(tools(choice)), HERMES)


@pytest.mark.parametrize(
    "guide",
    [
        GUIDE,
        Guide(GuideKind.JSON_OBJECT),
        Guide(GuideKind.JSON_SCHEMA, '{"type": "integer"}'),
        Guide(GuideKind.CHOICE, '["a", "b"]'),
    ],
)
def test_beside_tools_that_may_be_called_the_guide_holds_for_the_answer_without_calls(guide: Guide) -> None:
    prompt = tools("auto")
    assert prompt.tool_use is not None
    expected = tool_guide(prompt.tool_use, HERMES, enforceable_schema, content=rule_of(guide))
    assert constraint(request(prompt, guide), HERMES) == expected


@pytest.mark.parametrize("kind", [GuideKind.GRAMMAR, GuideKind.LARK])
def test_a_grammar_beside_tools_that_may_be_called_is_not_served(kind: GuideKind) -> None:
    with pytest.raises(Unsupported) as caught:
        constraint(request(tools("auto"), Guide(kind, 'root ::= "a"')), HERMES)
    assert caught.value.field == "guided_decoding_guide_type"
    assert str(kind) in caught.value.text


@pytest.mark.parametrize("guide", [Guide(GuideKind.REGEX, "("), Guide(GuideKind.CHOICE, "{}")])
def test_a_bad_guide_is_the_clients_mistake(guide: Guide) -> None:
    assert refusal(TextPrompt("a"), guide).startswith("[invalid_value] guided_decoding_guide: ")


def test_a_bad_schema_of_a_tool_is_blamed_on_the_tools() -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "minProperties": -1}}}
    assert refusal(tools("required", tool)).startswith("[invalid_value] tools: tools[0].function.parameters")


def test_a_tool_that_is_malformed_is_named() -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "string"}}}
    assert refusal(tools("auto", tool)).startswith("[invalid_value] tools[0].function.parameters.type: ")


@pytest.mark.parametrize("asked", [(TextPrompt("a"), GUIDE), (tools("auto"),), (tools("required"),)])
def test_who_ignores_the_end_cannot_have_a_form(asked: tuple[Any, ...]) -> None:
    message = "[invalid_value] ignore_eos: true goes with neither a guide nor tools: they say where it ends"
    assert refusal(*asked, ignore_eos=True) == message


def test_who_has_no_form_may_ignore_the_end() -> None:
    assert constraint(request(tools("none"), ignore_eos=True), HERMES) is None
