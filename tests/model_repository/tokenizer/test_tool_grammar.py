"""Every answer that the constraint of a chat with tools allows is text or calls of its tools, as they have to be."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_repository.contract.request import ToolUse
from model_repository.contract.rules import MAX_TOOLS
from model_repository.engine.constraint import ConstraintCompiler
from model_repository.engine.token_constraint import TokenConstraint
from model_repository.errors import InvalidRequest
from model_repository.notations import NAME
from model_repository.structured_output.grammar import lark_to_grammar
from model_repository.structured_output.json_schema import JSON_LAYOUT
from model_repository.tokenizer.tool_grammar import MAX_CALLS, tool_grammar
from model_repository.tool_formats import HARMONY, HERMES, LLAMA3_JSON, PLAIN, QWEN_XML, TOOL_FORMATS, ToolFormat
from tests.model_repository.structured_output.acceptance import accepts
from tests.parsed_calls import ToolCall, parse_tool_calls

FORMATS = [tool_format for tool_format in TOOL_FORMATS.values() if tool_format is not PLAIN]
# Tokens across the borders of the grammar's literals.
JOINED = ['{"', '"}}\n', '"}}\n</', '}; {"', '": ', "call>\n", '{"name": "', '", "arguments": {"', '"}\n```']
JOINED += ['json\n{"', " {"]


SPECIAL = [token for tool_format in FORMATS for token in tool_format.special_tokens]
NOTATIONS = [tool_format.notation for tool_format in FORMATS if tool_format.notation is not None]
JOINED += [part for each in NOTATIONS for part in (each.before_key, each.after_key, each.after_key_of_other) if part]
JOINED += [part for each in FORMATS for part in (each.before_calls, each.before_name, each.after_calls) if part]
TOKENS = [*(bytes([byte]) for byte in range(256)), *(text.encode() for text in SPECIAL + JOINED), b"<eos>"]
EOS = len(TOKENS) - 1
COMPILER = ConstraintCompiler(TOKENS, frozenset([EOS]), len(TOKENS))


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    function = {"name": name} if parameters is None else {"name": name, "parameters": parameters}
    return {"type": "function", "function": function}


def closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


INTEGER: dict[str, Any] = {"type": "integer"}
NODE = closed({"next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}, "next")
TOOLS = (
    tool("get", closed({"n": INTEGER, "l": {"type": "array", "items": {"type": "boolean"}}}, "n")),
    tool("get_weather", closed({"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}}, "city")),
    tool("now"),
    tool("tree", {"$ref": "#/$defs/node", "$defs": {"node": NODE}}),
)


SCHEMAS = {each["function"]["name"]: each["function"].get("parameters", {}) for each in TOOLS}


def is_node(value: Any) -> bool:
    return isinstance(value, dict) and list(value) == ["next"] and (value["next"] is None or is_node(value["next"]))


IS_VALID: dict[str, Callable[[Any], bool]] = {
    "get": lambda value: (
        list(value) in (["n"], ["n", "l"])
        and type(value["n"]) is int
        and all(type(item) is bool for item in value.get("l", []))
    ),
    "get_weather": lambda value: (
        list(value) in (["city"], ["city", "unit"])
        and isinstance(value["city"], str)
        and value.get("unit", "c") in ("c", "f")
    ),
    "now": lambda value: value == {},
    "tree": is_node,
}


def identity(schema: Any, place: str, is_strict: bool) -> dict[str, Any]:
    return {**schema, "x-guidance": JSON_LAYOUT}


def grammar(
    tool_format: ToolFormat, tools: Iterable[dict[str, Any]] = TOOLS, content: str | None = None, **options: Any
) -> str:
    rules = tool_grammar(ToolUse(tools=tuple(tools), **options), tool_format, identity, content=content)
    assert rules is not None
    return rules


def walk(constraint: TokenConstraint, rng: random.Random) -> str | None:
    """Draw tokens that the constraint allows; return the text if it comes to an end."""
    text = b""
    for _ in range(400):
        allowed = np.flatnonzero(constraint.allowed()).tolist()
        # Characters that close JSON are likelier, so that walks end.
        weights = [12 if token_id >= 256 else 6 if chr(token_id) in '"}]{' else 1 for token_id in allowed]
        token_id = rng.choices(allowed, weights)[0]
        assert constraint.accept_token(token_id)
        if token_id == EOS:
            return text.decode()
        text += TOKENS[token_id]
    return None


def numbered(text: str) -> str:
    """Number the calls of the formats with numbers from 0: a model may number them otherwise. -0 becomes 0."""
    text = re.sub(r"(?<![\w.])-0(?![\w.])", "0", text)
    numbers = itertools.count()
    return re.sub(
        r"(:|\[CALL_ID\]call)[0-9]+(?=<\|tool_call_argument_begin\|>|\[ARGS\])",
        lambda match: f"{match[1]}{next(numbers):0{1 if match[1] == ':' else 5}}",
        text,
    )


@pytest.mark.parametrize("is_parallel", [True, False])
@pytest.mark.parametrize("choice", ["auto", "required", "function:get"])
@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda tool_format: tool_format.name)
def test_every_answer_is_text_and_valid_calls(tool_format: ToolFormat, choice: str, is_parallel: bool) -> None:
    output = grammar(tool_format, choice=choice, is_parallel=is_parallel)
    rng = random.Random(f"{tool_format.name} {choice} {is_parallel}")
    answers = [
        text for text in (walk(COMPILER.start(lark_to_grammar(output)), rng) for _ in range(30)) if text is not None
    ]
    assert len(answers) > 5
    for text in map(numbered, answers):
        content, calls = parse_tool_calls(tool_format.name, text, schemas=SCHEMAS)
        assert all(call.is_complete and IS_VALID[call.name](json.loads(call.arguments)) for call in calls)
        is_repeatable = is_parallel and choice != "function:get" and not tool_format.has_messages
        assert len(calls) <= (MAX_CALLS if is_repeatable else 1)
        if tool_format.other_before_name:
            text = re.sub(f"(^|assistant){tool_format.other_before_name}", rf"\1{tool_format.before_name}", text)
            text = text.replace(tool_format.other_before_arguments, tool_format.before_arguments)
            text = re.sub(r"(?<! )<\|constrain", " <|constrain", text)
        pairs = [(call.name, call.arguments) for call in calls]
        texts = [form.calls_text(pairs) for form in (tool_format, *tool_format.other_forms)] if calls else [""]
        written = next(each for each in texts if text.endswith(each))
        lead = text.removesuffix(written)
        if tool_format.has_messages:
            assert choice == "auto" or (calls and not content)
        elif choice == "auto":
            assert not tool_format.trigger or tool_format.trigger not in lead
            assert content == (lead.rstrip(" \t\r\n") if calls else text) or lead == tool_format.answer_prefix
        else:
            assert written == texts[0]
            assert calls and not lead
        if choice == "function:get":
            assert [call.name for call in calls] == ["get"]


ANY = closed(
    {
        "text": {"type": "string"},
        "number": {"type": "number"},
        "count": INTEGER,
        "flag": {"type": "boolean"},
        "list": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
        "nested": {"type": "object", "additionalProperties": {"type": "array", "items": {}}},
        "word": {"enum": ["a b", 1, None]},
        "größe": {"type": ["string", "boolean"]},
    }
)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"))  # DEL has another form in the grammar's JSON
KEYS = st.from_regex("[a-z_]{1,8}", fullmatch=True)  # some formats write them without quotes
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(KEYS, values, max_size=3),
    max_leaves=5,
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXTS,
        "number": st.floats(allow_nan=False, allow_infinity=False),
        "count": st.integers(),
        "flag": st.booleans(),
        "list": st.lists(st.none() | TEXTS, max_size=3),
        "nested": st.dictionaries(KEYS, st.lists(JSON_VALUES, max_size=2), max_size=2),
        "word": st.sampled_from(["a b", 1, None]),
        "größe": st.booleans() | TEXTS.filter(lambda text: text.strip() not in ("true", "false")),
    },
).map(lambda arguments: {key: arguments[key] for key in ANY["properties"] if key in arguments})


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda tool_format: tool_format.name)
@settings(max_examples=50)
@given(calls=st.lists(st.tuples(st.sampled_from(["f", "get-it.2"]), ARGUMENTS), min_size=1, max_size=3))
def test_calls_that_the_schema_allows_pass_the_grammar_and_are_read(
    tool_format: ToolFormat, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    tools = [tool("f", ANY), tool("get-it.2", ANY)]
    calls = calls[:1] if tool_format.has_messages else calls
    text = tool_format.calls_text([(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls])
    for choice in ("auto", "required"):
        assert accepts(grammar(tool_format, tools, choice=choice), text)
    content, parsed = parse_tool_calls(tool_format.name, text, piece_size=1, schemas={"f": ANY, "get-it.2": ANY})
    assert (content, [(call.name, json.loads(call.arguments)) for call in parsed]) == ("", calls)
    assert all(call.is_complete for call in parsed)


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda tool_format: tool_format.name)
def test_each_choice_allows_its_answers_only(tool_format: ToolFormat) -> None:
    get = tool_format.calls_text([("get", '{"n": 1}')])
    weather = tool_format.calls_text([("get_weather", '{"city": "</tool_call>"}')])
    both = tool_format.calls_text([("get", '{"n": 1}'), ("now", "{}")])
    too_many = tool_format.calls_text([("now", "{}")] * (MAX_CALLS + 1))
    head = "<|channel|>final<|message|>" if tool_format.has_messages else ""
    texts = [head, f"{head}Hello <you>, {{}}.", get, weather, both, too_many, get + " Done."]
    several = not tool_format.has_messages

    def allowed(**options: Any) -> list[bool]:
        output = grammar(tool_format, **options)
        return [accepts(output, text) for text in texts]

    assert allowed() == [True, True, True, True, several, False, False]
    assert allowed(is_parallel=False) == [True, True, True, True, False, False, False]
    assert allowed(choice="required") == [False, False, True, True, several, False, False]
    assert allowed(choice="required", is_parallel=False) == [False, False, True, True, False, False, False]
    assert allowed(choice="function:get") == [False, False, True, False, False, False, False]


@pytest.mark.parametrize("tool_format", TOOL_FORMATS.values(), ids=lambda tool_format: tool_format.name)
def test_an_answer_of_a_form_or_calls_instead(tool_format: ToolFormat) -> None:
    output = grammar(tool_format, content='%json {"type": "integer"}')
    call = tool_format.calls_text([("now", "{}")])
    head = "<|channel|>final<|message|>" if tool_format.has_messages else ""
    assert accepts(output, f"{head}12") and accepts(output, call)
    assert not accepts(output, f"{head}twelve") and not accepts(output, f"{head}12{call}")
    assert not accepts(grammar(tool_format, content='%json {"type": "integer"}', choice="required"), f"{head}12")


def test_a_call_in_messages_follows_thinking_and_with_auto_texts_to_the_user() -> None:
    call = HARMONY.calls_text([("now", "{}")])
    thinking, preamble, final = (f"<|channel|>{each}<|message|>" for each in ("analysis", "commentary", "final"))
    ahead = f"{thinking}a<{HARMONY.between_calls}"
    other = " to=functions.now<|channel|>commentary json<|message|>{}"
    texts = [
        ahead + call,
        ahead + call.replace(" <|constrain|>", "<|constrain|>"),
        ahead * 2 + other,
        f"{preamble}a{HARMONY.between_calls}{call}",
        f"{ahead}{final}a<|end|",
    ]
    wrong = [f"{final}a{HARMONY.between_calls}{call}", f"{thinking}a", f"{ahead}a", f"{final}a<|end|>"]

    def allowed(**options: Any) -> list[bool]:
        output = grammar(HARMONY, **options)
        return [accepts(output, text) for text in texts + wrong]

    assert allowed() == [True] * 5 + [False] * 4
    assert allowed(choice="required") == [True] * 3 + [False] * 6
    assert allowed(content='"12"') == [True] * 3 + [False] * 6


OTHER_FORMS = [(each, form) for each in FORMATS for form in each.other_forms]


@pytest.mark.parametrize(("tool_format", "form"), OTHER_FORMS, ids=[each.name for each, _ in OTHER_FORMS])
def test_a_call_of_another_form_is_held_to_its_schema_where_text_is_allowed(
    tool_format: ToolFormat, form: ToolFormat
) -> None:
    lead = "I look.\n" if form.trigger else ""
    valid, wrong = (lead + form.calls_text([("get", arguments)]) for arguments in ('{"n": 1}', '{"n": "a"}'))
    output = grammar(tool_format)
    assert accepts(output, valid) and not accepts(output, wrong)
    assert not any(accepts(grammar(tool_format, choice=choice), valid) for choice in ("required", "function:get"))
    for piece_size in (0, 1, 3):
        content, calls = parse_tool_calls(tool_format.name, valid, piece_size=piece_size, schemas=SCHEMAS)
        assert (content, calls) == (lead.rstrip(), [ToolCall("get", '{"n": 1}', True)])


def test_the_formats_with_an_inner_marker_or_json_have_other_forms() -> None:
    bare = {"qwen_xml", "minimax_m2", "kimi_k2", "deepseek", "deepseek_v31", "deepseek_v32", "deepseek_v4"}
    assert {each.name for each, _ in OTHER_FORMS} == bare | {"llama3_json", "llama4"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen_xml", "Write <function=now>\n</function> in a line."),
        ("minimax_m2", 'Write <invoke name="now">\n</invoke> in a line.'),
        ("deepseek", "A tool call begins with its token."),
        ("llama4", "Links:\n[now](there)\n[now()]"),
        ("llama4", '{"name": "Ann", "parameters": {}}'),
        ("llama3_json", '{"name": "Ann", "parameters": {}}'),
        ("llama3_json", '{"type": "function", "function": {"name": "now"}}'),
        ("llama3_json", '[{"name": "Ann"}, {"name": "now"}]'),
    ],
)
def test_a_text_that_only_mentions_a_marker_is_text(name: str, text: str) -> None:
    assert accepts(grammar(TOOL_FORMATS[name]), text)
    assert parse_tool_calls(name, text, piece_size=1, schemas=SCHEMAS) == (text, [])


def test_llamas_answer_is_a_call_by_the_name_of_a_tool() -> None:
    output = grammar(LLAMA3_JSON)
    call = LLAMA3_JSON.calls_text([("now", "{}")])
    texts = [f"<|python_tag|>{call}", '{"a": 1}', f"So: {call}", "<b>{}</b>"]
    assert all(accepts(output, text) for text in texts)
    wrong = ["<|python_tag|>print(1)", f" {call}", '{"name": "now", "age": 3}', '{ "name" :"now"}', f"[{call}"]
    assert not any(accepts(output, text) for text in wrong)


@pytest.mark.parametrize(
    ("parameters", "arguments", "is_valid"),
    [
        (None, "{}", True),
        (None, '{"a": 1}', False),
        ({}, '{"a": 1}', False),
        ({"type": "object", "properties": {}, "required": [], "description": "none"}, '{"a": 1}', False),
        ({"type": "object"}, '{"a": 1}', True),  # any object
        ({"type": "object", "properties": {}, "additionalProperties": {"type": "integer"}}, '{"a": 1}', True),
        ({"type": ["object", "null"], "properties": {"a": INTEGER}}, "null", False),
        ({"type": "object", "nullable": True}, "null", False),
        ({"properties": {"a": INTEGER}}, '{"a": 1}', True),
        ({"properties": {"a": INTEGER}}, "5", False),
        (closed({"a": INTEGER, "b": INTEGER}), '{"a": 1, "b": 2}', True),
        (closed({"a": INTEGER, "b": INTEGER}), '{"a":1,"b":2}', False),  # spaced as models write it
        ({"anyOf": [closed({"a": INTEGER}, "a"), closed({"b": INTEGER}, "b")]}, '{"b": 1}', True),
        ({"anyOf": [closed({"a": INTEGER}, "a"), closed({"b": INTEGER}, "b")]}, "{}", False),
    ],
)
def test_arguments_are_an_object_that_the_schema_allows(parameters: Any, arguments: str, is_valid: bool) -> None:
    output = grammar(HERMES, [tool("f", parameters)])
    assert accepts(output, HERMES.calls_text([("f", arguments)])) == is_valid


def test_names_are_written_exactly() -> None:
    assert tool_grammar(ToolUse(tools=()), HERMES, identity) is None
    every_name = ["a", "a.b", "a b", "größe", "<|x|>", "a/b#c", "%json"]
    for tool_format in FORMATS:
        names = [name for name in every_name if tool_format.notation is None or re.fullmatch(NAME, name)]
        if tool_format.has_messages:
            names = [name for name in names if not set(" <") & set(name)]
        output = grammar(tool_format, map(tool, names), choice="required")
        for name in [*names, "a.", "b"]:
            text = tool_format.calls_text([(name, "{}")])
            assert accepts(output, text) == (name in names)


@pytest.mark.parametrize("tool_format", TOOL_FORMATS.values(), ids=lambda tool_format: tool_format.name)
def test_a_name_that_holds_what_ends_it_is_refused(tool_format: ToolFormat) -> None:
    with pytest.raises(InvalidRequest) as error:
        grammar(tool_format, [tool(f"f{tool_format.before_arguments or '<'}")])
    assert error.value.field == "tools[0].function.name"


@pytest.mark.parametrize("name", ["a b", "a<", "a\u00a0b"])
def test_a_name_that_ends_early_in_the_head_of_a_message_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        grammar(HARMONY, [tool(name)])
    assert error.value.field == "tools[0].function.name"


def test_schemas_are_prepared_with_their_place_and_strictness() -> None:
    seen: list[tuple[object, str, bool]] = []

    def prepare(schema: object, place: str, is_strict: bool) -> dict[str, Any]:
        seen.append((schema, place, is_strict))
        return closed({"z": INTEGER}, "z")

    given = closed({"x": INTEGER})
    tools = [tool("a", given), tool("b", given), tool("c", given)]
    tools[0]["function"]["strict"], tools[1]["function"]["strict"] = True, False
    structured_output = tool_grammar(ToolUse(tools=tuple(tools)), HERMES, prepare)
    expected = zip(range(3), (True, False, False), strict=True)
    assert seen == [(given, f"tools[{number}].function.parameters", is_strict) for number, is_strict in expected]
    assert structured_output is not None
    assert accepts(structured_output, HERMES.calls_text([("a", '{"z": 1}')]))


@pytest.mark.parametrize(
    ("tools", "field"),
    [
        ((TOOLS[0], tool('a"b')), "tools[1].function.name"),
        ((tool("a\nb"),), "tools[0].function.name"),
        ((tool("a" * 257),), "tools[0].function.name"),
        ((tool("f", []),), "tools[0].function.parameters"),
        ((tool("f", {"type": "string"}),), "tools[0].function.parameters.type"),
    ],
)
def test_a_tool_that_no_call_can_name_or_fill_is_refused_by_its_place(tools: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        tool_grammar(ToolUse(tools=tools), HERMES, identity)
    assert error.value.field == field


@pytest.mark.parametrize("tool_format", [HERMES, QWEN_XML, LLAMA3_JSON, HARMONY], ids=lambda each: each.name)
def test_as_many_tools_as_are_allowed_compile(tool_format: ToolFormat) -> None:
    parameters = closed({"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}}, "city")
    output = grammar(tool_format, [tool(f"t{number}", parameters) for number in range(MAX_TOOLS)])
    assert accepts(output, tool_format.calls_text([(f"t{MAX_TOOLS - 1}", '{"city": "Oslo", "days": 3}')]))
