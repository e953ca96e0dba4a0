"""The form that a completion must have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from model_repository.contract.request import (
    MAX_IGNORED_PLACES,
    ChatPrompt,
    GenerationRequest,
    OutputFormat,
    Params,
    StructuredOutput,
    TextPrompt,
    TokenPrompt,
    ToolUse,
)
from model_repository.errors import InvalidRequest
from model_repository.structured_output.grammar import (
    FREE_TOKENS,
    lark_to_grammar,
    rule_of,
    structured_output_to_grammar,
)
from model_repository.structured_output.json_schema import enforceable_schema
from model_repository.tokenizer.constraint import MAX_BYTES, ConstraintChecker, Form, form_of
from model_repository.tokenizer.tool_grammar import tool_grammar
from model_repository.tool_formats import HARMONY, HERMES
from tests.model_repository.structured_output.acceptance import accepts

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
REGEX_OUTPUT = StructuredOutput(OutputFormat.REGEX, "a+")


def tools(choice: str, tool: Any = TOOL) -> ChatPrompt:
    return ChatPrompt(({"role": "user", "content": "hi"},), tool_use=ToolUse(tools=(tool,), choice=choice))


def request(prompt: Any, output: StructuredOutput | None = None, **others: Any) -> GenerationRequest:
    return GenerationRequest(prompt=prompt, params=Params(structured_output=output, **others))


def combined(rules: str | None) -> Form:
    assert rules is not None
    return Form(lark_to_grammar(rules), is_combined=True)


def refusal(*args: Any, **others: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        form_of(request(*args, **others), HERMES)
    return caught.value.message()


@pytest.mark.parametrize("prompt", [TextPrompt("a"), TokenPrompt((1,)), ChatPrompt(()), tools("none")])
@pytest.mark.parametrize("output", [None, REGEX_OUTPUT])
def test_without_tools_to_call_the_requests_structured_output_holds(
    prompt: Any, output: StructuredOutput | None
) -> None:
    expected = Form() if output is None else Form(structured_output_to_grammar(output))
    assert form_of(request(prompt, output), HERMES) == expected


@pytest.mark.parametrize("choice", ["auto", "required", "function:add"])
def test_tools_determine_the_form_of_the_answer(choice: str) -> None:
    prompt = tools(choice)
    assert prompt.tool_use is not None
    expected = combined(tool_grammar(prompt.tool_use, HERMES, enforceable_schema))
    assert form_of(request(prompt), HERMES) == expected
    if choice != "auto":  # a tool must be called
        assert form_of(request(prompt, REGEX_OUTPUT), HERMES) == expected


@pytest.mark.parametrize(
    "output",
    [
        REGEX_OUTPUT,
        StructuredOutput(OutputFormat.JSON_SCHEMA, '{"type": "integer"}'),
        StructuredOutput(OutputFormat.GRAMMAR, 'root ::= "}" | "{" root'),
    ],
)
def test_beside_tools_that_may_be_called_the_structured_output_holds_for_the_answer_without_calls(
    output: StructuredOutput,
) -> None:
    prompt = tools("auto")
    assert prompt.tool_use is not None
    expected = combined(tool_grammar(prompt.tool_use, HERMES, enforceable_schema, content=rule_of(output)))
    assert form_of(request(prompt, output), HERMES) == expected


NEW, GOING_ON = ChatPrompt(()), ChatPrompt((), add_generation_prompt=False)
HEADS = "<|channel|>analysis<|message|>T<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    "output",
    [
        StructuredOutput(OutputFormat.JSON_SCHEMA, '{"const": "aa"}'),
        StructuredOutput(OutputFormat.REGEX, '"a+"'),
        StructuredOutput(OutputFormat.CHOICE, '["\\"aa\\""]'),
        StructuredOutput(OutputFormat.GRAMMAR, 'root ::= q "a" "a" q\nq ::= [\\x22]'),
    ],
)
def test_the_form_of_a_new_message_includes_heads_and_thinking(output: StructuredOutput) -> None:
    whole = form_of(request(NEW, output), HARMONY)
    assert whole.is_combined
    texts = [f'{HEADS}"aa"', f'{HEADS.partition("assistant")[2]}"aa"', f"{HEADS}b", f'{HEADS}"aa"<|end|>', '"aa"']
    assert [accepts(whole.grammar.removesuffix(FREE_TOKENS), text) for text in texts] == [
        True,
        True,
        False,
        False,
        False,
    ]
    alone = Form(structured_output_to_grammar(output))
    assert form_of(request(GOING_ON, output), HARMONY) == alone
    assert form_of(request(TextPrompt("a"), output), HARMONY) == alone


def test_a_message_that_goes_on_calls_no_tools() -> None:
    going_on = replace(tools("auto"), add_generation_prompt=False)
    assert form_of(request(going_on), HARMONY) == Form()
    assert form_of(request(going_on, REGEX_OUTPUT), HARMONY) == Form(structured_output_to_grammar(REGEX_OUTPUT))
    with pytest.raises(InvalidRequest) as caught:
        form_of(request(replace(tools("required"), add_generation_prompt=False)), HARMONY)
    assert caught.value.field == "tool_choice"


def test_a_bad_schema_of_a_tool_is_blamed_on_the_tools() -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "minProperties": -1}}}
    assert refusal(tools("required", tool)).startswith("[invalid_value] tools: tools[0].function.parameters")


@pytest.mark.parametrize("asked", [(TextPrompt("a"), REGEX_OUTPUT), (tools("auto"),), (tools("required"),)])
def test_a_completion_that_ignores_the_end_cannot_have_a_form(asked: tuple[Any, ...]) -> None:
    message = "[invalid_value] ignore_eos: true goes with neither structured output nor tools: they say where it ends"
    assert refusal(*asked, ignore_eos=True) == message


def fan(num_levels: int) -> str:
    """Return a grammar of few rules that stands for a text of 2 ** levels characters."""
    rules = [f"r{level} ::= r{level + 1} r{level + 1}" for level in range(num_levels)]
    return "\n".join(["root ::= r0", *rules, f'r{num_levels} ::= "a"'])


# Each is within the limits of characters, lines, definitions and nesting.
BOMBS = {
    "a grammar of 30 levels": StructuredOutput(OutputFormat.GRAMMAR, fan(30)),
    "patterns that must all match": StructuredOutput(
        OutputFormat.JSON_SCHEMA, json.dumps({"allOf": [{"pattern": f"a{{0,{n}}}b"} for n in range(1, 60)]})
    ),
}


@pytest.fixture(scope="module")
def compiler() -> Iterator[ConstraintChecker]:
    one = ConstraintChecker(1)
    yield one
    one.close()


def test_a_checker_tells_new_messages_from_others(compiler: ConstraintChecker) -> None:
    for prompt in (NEW, GOING_ON, TextPrompt("a")):
        asked = request(prompt, REGEX_OUTPUT)
        assert compiler.form(asked, HARMONY).grammar == form_of(asked, HARMONY).grammar


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_grammar_that_is_a_bomb_is_refused_within_its_bounds(compiler: ConstraintChecker, bomb: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        compiler.form(request(TextPrompt("a"), BOMBS[bomb]), HERMES)
    assert caught.value.field == "guided_decoding_guide"
    # llguidance has a limit of its own, which a fast processor may reach before our limit of processor time.
    assert re.search("more than .* (processor time|memory), which is the limit|grammar.* too big", caught.value.text)


@pytest.mark.parametrize(
    "output",
    [
        REGEX_OUTPUT,
        StructuredOutput(OutputFormat.JSON_OBJECT),
        StructuredOutput(OutputFormat.GRAMMAR, fan(10)),
        StructuredOutput(OutputFormat.CHOICE, json.dumps([f"choice {n}" for n in range(1000)])),
    ],
)
def test_a_grammar_within_its_bounds_comes_back_with_the_memory_it_takes(
    compiler: ConstraintChecker, output: StructuredOutput
) -> None:
    found = compiler.form(request(TextPrompt("a"), output), HERMES)
    assert found == Form(structured_output_to_grammar(output), num_bytes=found.num_bytes)
    assert 100_000 < found.num_bytes <= MAX_BYTES


# --- keywords without effect ------------------------------------------------------------------------------------------

UNUSED: Any = {"type": "object", "properties": {"a": {"not": {}}}}
UNUSED_TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": UNUSED}}


def lax(schema: Any) -> StructuredOutput:
    return StructuredOutput(OutputFormat.JSON_SCHEMA, json.dumps(schema), is_strict=False)


@pytest.mark.parametrize(
    ("prompt", "output", "places"),
    [
        (TextPrompt("a"), lax(UNUSED), ["schema.properties.a.not"]),
        (tools("auto", UNUSED_TOOL), None, ["tools[0].function.parameters.properties.a.not"]),
        (
            tools("auto", UNUSED_TOOL),
            lax({"x": 1}),
            ["schema.x", "tools[0].function.parameters.properties.a.not"],
        ),
        # Where nothing is enforced, nothing is ignored.
        (tools("required", UNUSED_TOOL), lax({"x": 1}), ["tools[0].function.parameters.properties.a.not"]),
        (tools("none", UNUSED_TOOL), None, []),
        (replace(tools("auto", UNUSED_TOOL), add_generation_prompt=False), None, []),
    ],
)
def test_a_form_comes_with_the_keywords_that_it_lacks(
    compiler: ConstraintChecker, prompt: Any, output: StructuredOutput | None, places: list[str]
) -> None:
    tool_format = HERMES if prompt.__class__ is TextPrompt or prompt.add_generation_prompt else HARMONY
    assert [*compiler.form(request(prompt, output), tool_format).ignored_keywords] == places


def test_the_keywords_of_forty_large_tools_are_listed_within_the_bounds(compiler: ConstraintChecker) -> None:
    """The proofs of all of them took the frontend 3 s; some go unproved now, and are listed."""
    schema = {"type": "object", "properties": {"a": {"oneOf": [{"const": number} for number in range(90)]}}}
    many = tuple({"type": "function", "function": {"name": f"f{n}", "parameters": schema}} for n in range(40))
    prompt = replace(tools("auto"), tool_use=ToolUse(tools=many))
    found = compiler.form(request(prompt), HERMES)
    assert found.ignored_keywords[-1] == f"tools[{MAX_IGNORED_PLACES}].function.parameters.properties.a.oneOf"


# --- custom tools -----------------------------------------------------------------------------------------------------


def test_the_grammars_of_custom_tools_are_read_within_the_bounds(compiler: ConstraintChecker) -> None:
    assert compiler.patterns((None, ("lark", 'start: "a"'), ("regex", "a|b"))) == ("", "^(?:a)$", "^(?:a|b)$")
    with pytest.raises(InvalidRequest) as caught:
        compiler.patterns((None, ("regex", "(")))
    assert caught.value.field == "tools[1].custom.format.grammar.definition"
    slow = "(a|b)?" * 800
    with pytest.raises(InvalidRequest, match="which is the limit") as caught:
        compiler.patterns((("regex", slow),) * 1000)
    assert caught.value.field == "tools"
