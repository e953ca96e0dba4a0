"""Custom tools as functions, in the prompt and in the form of a call."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from model_repository.contract.request import ChatPrompt, TokenizeRequest, ToolUse
from model_repository.contract.rules import check_prompt
from model_repository.errors import InvalidRequest
from model_repository.tokenizer.constraint import Form
from model_repository.tokenizer.custom_tools import (
    InputGrammars,
    Patterns,
    as_functions,
    input_grammars,
    input_patterns,
)
from model_repository.tokenizer.stage import GrammarNotChecked, TokenizerStage
from tests.model_repository.tokenizer.models import DEMO_BYTES, DEMO_FILES
from tests.model_repository.tokenizer.test_stage import MODEL, STAGE, TOOL, request
from tests.model_repository.tokenizer.unbounded_checker import UnboundedChecker

INPUT = {"type": "string"}


def grammar(definition: str, syntax: str = "regex") -> dict[str, Any]:
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


def custom(form: Any = None, **fields: Any) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": "run"} | ({} if form is None else {"format": form}) | fields}


def chat(*tools: Any, **options: Any) -> ChatPrompt:
    return ChatPrompt(({"role": "user", "content": "hi"},), tool_use=ToolUse(tools=tools, **options))


def functions(*tools: Any) -> Any:
    return as_functions(tools, input_patterns(input_grammars(tools)))


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        (None, INPUT),
        ({"type": "text"}, INPUT),
        (grammar("a|b"), INPUT | {"pattern": "^(?:a|b)$"}),
        (
            grammar('start: "a"', "lark"),
            INPUT | {"pattern": "^(?:a)$", "description": 'Text of this Lark grammar:\nstart: "a"'},
        ),
    ],
)
def test_a_custom_tool_reaches_the_template_as_a_function_of_one_text(form: Any, schema: dict[str, Any]) -> None:
    parameters = {
        "type": "object",
        "properties": {"input": schema},
        "required": ["input"],
        "additionalProperties": False,
    }
    function = {"name": "run", "description": "runs", "parameters": parameters}
    found = functions(TOOL, custom(form, description="runs"))
    assert found == (TOOL, {"type": "function", "function": function})
    assert [*found[1]["function"]] == [*function] and [*found[1]["function"]["parameters"]] == [*parameters]


@pytest.mark.parametrize("form", [None, grammar("[ab]+"), grammar('start: "a"', "lark")])
def test_a_prompt_and_its_count_are_those_of_the_functions(form: Any) -> None:
    tools = (TOOL, custom(form, description="runs"))
    expected = STAGE.encode(request(chat(*functions(*tools), choice="required")))
    found = STAGE.encode(request(chat(*tools, choice="function:run")))
    assert found.prompt_token_ids == expected.prompt_token_ids
    assert STAGE.tokenize(TokenizeRequest(chat(*tools))).token_ids == expected.prompt_token_ids
    assert '"run' in found.grammar or "run" in found.grammar
    plain = STAGE.encode(request(chat(*tools, choice="none")))
    assert plain.prompt_token_ids == STAGE.encode(request(replace(chat(TOOL), tool_use=None))).prompt_token_ids


def test_a_grammar_is_read_once_for_an_owner_and_only_by_a_caller_that_can_wait() -> None:
    """A key learned from the time of its answer whether another key had sent the same grammar or schema."""
    seen: list[Any] = []

    class Checker(UnboundedChecker):
        def patterns(self, grammars: InputGrammars) -> Patterns:
            seen.append("patterns")
            return super().patterns(grammars)

        def form(self, *arguments: Any) -> Form:
            seen.append("form")
            return super().form(*arguments)

    stage = TokenizerStage(DEMO_FILES, DEMO_BYTES, MODEL, Checker())
    prompt = chat(custom(grammar("a+")))
    with pytest.raises(GrammarNotChecked):
        stage.tokenize(TokenizeRequest(prompt, sender="a"), may_wait=False)
    with pytest.raises(GrammarNotChecked):
        stage.encode(request(prompt, sender="a"), may_wait=False)
    assert seen == []
    stage.tokenize(TokenizeRequest(prompt, sender="a"))
    assert seen == ["patterns"]
    for salt, sender in (("", "a"), ("a", ""), ("a", "b")):
        stage.encode(request(prompt, cache_salt=salt, sender=sender))
        assert seen == ["patterns", "form"]
    stage.encode(request(prompt, sender="b"))
    assert seen == ["patterns", "form"] * 2
    with pytest.raises(InvalidRequest):
        stage.encode(request(chat(custom(grammar("("))), sender="b"))
    with pytest.raises(InvalidRequest) as caught:  # a refusal is kept, too
        stage.encode(request(chat(custom(grammar("("))), sender="b"), may_wait=False)
    assert caught.value.field == "tools[0].custom.format.grammar.definition"


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "custom"},
        {"type": "custom", "custom": {"name": ""}},
        custom({"type": "grammar"}),
        custom(grammar("a", "ebnf")),
        custom(grammar("a" * 5001)),
    ],
)
def test_a_malformed_custom_tool_is_refused_by_its_place(tool: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_prompt(chat(TOOL, tool))
    assert caught.value.field == "tools[1]"
