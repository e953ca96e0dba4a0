"""Arguments in other notations than JSON satisfy the tool's schema just as JSON does."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_repository.contract.request import ChatPrompt, GenerationRequest, Params, ToolUse
from model_repository.errors import InvalidRequest, Unsupported
from model_repository.structured_output.grammar import lark_to_grammar
from model_repository.structured_output.json_schema import enforceable_schema
from model_repository.tokenizer.constraint import Form, form_of
from model_repository.tokenizer.tool_grammar import tool_grammar
from model_repository.tool_formats import QWEN_XML, TOOL_FORMATS, ToolFormat
from tests.model_repository.structured_output.acceptance import accepts, accepts_json
from tests.parsed_calls import parse_tool_calls

FORMATS = [each for each in TOOL_FORMATS.values() if each.notation is not None]
EVERY_FORMAT = pytest.mark.parametrize("tool_format", FORMATS, ids=lambda tool_format: tool_format.name)
KEYS = st.sampled_from(["a", "b", "a.b", "größe", "$c", "d-e"])
TEXTS = st.text(st.sampled_from("ab\n\"'\\{}[],:=<> é5"), max_size=5)
NUMBERS = st.integers(-20, 20)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda values: st.lists(values, max_size=2) | st.dictionaries(KEYS, values, max_size=2),
    max_leaves=4,
)
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.just({"type": "string"}),
    st.just({"type": "integer"}),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.just({"type": ["string", "null"]}),
    st.just({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
    st.just({}),
    st.builds(lambda low: {"type": "string", "minLength": low, "maxLength": low + 2}, st.integers(0, 2)),
    st.just({"type": "string", "pattern": "^a/?b*$"}),
    st.just({"type": "string", "pattern": "b", "maxLength": 3}),
    st.builds(lambda low: {"type": "integer", "minimum": low}, NUMBERS),
    st.builds(lambda values: {"enum": values}, st.lists(NUMBERS | TEXTS | st.none(), min_size=1, max_size=3)),
    st.builds(lambda value: {"const": value}, ANYTHING),
    st.builds(lambda value: {"allOf": [{"$ref": "#/$defs/text"}, {"maxLength": value}]}, st.integers(1, 3)),
    st.just({"$ref": "#/$defs/node"}),
)


def objects(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return schemas of objects with some of their keys required."""
    return st.builds(
        lambda properties, number, more: {
            "type": "object",
            "properties": properties,
            "required": list(properties)[:number] if number >= 0 else list(properties)[number:],
            "additionalProperties": more,
        },
        st.dictionaries(KEYS, schemas, max_size=3),
        st.integers(-2, 2),
        st.sampled_from([False, False, {"type": "integer"}]),
    )


def lists(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(
        lambda items, prefix, low, size: {
            "type": "array",
            "items": items,
            "minItems": low,
            **({"prefixItems": prefix} if prefix else {}),
            **({"maxItems": low + size} if size is not None else {}),
        },
        schemas,
        st.lists(schemas, max_size=2),
        st.integers(0, 2),
        st.none() | st.integers(0, 2),
    )


SCHEMAS = objects(st.recursive(SCALARS, lambda schemas: objects(schemas) | lists(schemas), max_leaves=4))
NODE = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
    "required": ["next"],
    "additionalProperties": False,
}
DEFINITIONS = {"text": {"type": "string", "minLength": 1}, "node": NODE}


def values_of(schema: Any) -> st.SearchStrategy[Any]:
    """Return values of which many satisfy a schema."""
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "$ref" in schema:
        return st.sampled_from([{"next": None}, {"next": {"next": None}}, {}, None])
    match schema.get("type"):
        case "object":
            required = {key: values_of(schema["properties"][key]) for key in schema["required"]}
            other = {key: values_of(each) for key, each in schema["properties"].items() if key not in required}
            fixed = st.fixed_dictionaries(required, optional=other)
            return fixed.map(lambda value: {key: value[key] for key in schema["properties"] if key in value})
        case "array":
            return st.lists(values_of(schema["items"]), min_size=schema["minItems"], max_size=schema["minItems"] + 1)
        case "integer":
            return NUMBERS
        case "boolean":
            return st.booleans()
        case "string":
            return TEXTS | st.sampled_from(["a", "ab", "a/b"])
        case _:
            return ANYTHING


def grammar(tool_format: ToolFormat, parameters: Any) -> str:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    rules = tool_grammar(ToolUse(tools=(tool,), choice="required"), tool_format, enforceable_schema)
    assert rules is not None
    return rules


@settings(max_examples=300)
@given(data=st.data(), name=st.sampled_from([tool_format.name for tool_format in FORMATS]), schema=SCHEMAS)
def test_the_arguments_are_those_of_json(data: st.DataObject, name: str, schema: Any) -> None:
    tool_format = TOOL_FORMATS[name]
    schema = {**schema, "$defs": DEFINITIONS}
    arguments = data.draw(values_of(schema) | st.dictionaries(KEYS, ANYTHING, max_size=3))
    text = tool_format.calls_text([("f", json.dumps(arguments))])
    is_accepted = accepts(grammar(tool_format, schema), text)
    assert is_accepted or not accepts_json(schema, arguments), (name, schema, arguments)
    if is_accepted:
        content, [call] = parse_tool_calls(tool_format.name, text, schemas={"f": schema})
        assert not content and call.is_complete
        assert accepts_json(schema, json.loads(call.arguments))


@pytest.mark.parametrize(
    ("form", "valid", "invalid"),
    [
        ("date", "2024-02-29", "2023-02-29"),
        ("duration", "P1DT2H", "1D"),
        ("ipv4", "192.168.0.1", "192.168.0.256"),
        ("ipv6", "fe80::1", "fe80::1::2"),
        ("uri", "https://a.example/b?c=%20#d", "https://a b"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
    ],
)
def test_formats_hold_for_texts_that_stand_as_they_are(form: str, valid: str, invalid: str) -> None:
    output = grammar(QWEN_XML, {"properties": {"t": {"type": "string", "format": form}}, "required": ["t"]})
    texts = [QWEN_XML.calls_text([("f", json.dumps({"t": text}))]) for text in (valid, invalid)]
    assert [accepts(output, text) for text in texts] == [True, False]


@EVERY_FORMAT
def test_a_text_cannot_hold_what_ends_it(tool_format: ToolFormat) -> None:
    assert tool_format.notation is not None
    mark = tool_format.notation.text_end.strip()
    calls = [tool_format.calls_text([("f", json.dumps({"t": text}))]) for text in ("<b>\n", f"a{mark}b")]
    output = grammar(tool_format, {"properties": {"t": {"type": "string"}}})
    is_json_string = tool_format.notation.quote == '"'
    assert [accepts(output, call) for call in calls] == [True, is_json_string]


@EVERY_FORMAT
@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"properties": {"a b": {}}}, "'a b': keys in this model's calls"),
        ({"patternProperties": {"^a": {}}}, "patternProperties"),
        ({"additionalProperties": {}, "minProperties": 1}, "minProperties"),
        ({"allOf": [{"anyOf": [{"required": [each]} for each in names]} for names in ("ab", "cd")]}, "anyOf"),
    ],
)
def test_what_a_notation_cannot_enforce_is_refused(tool_format: ToolFormat, parameters: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as error:
        grammar(tool_format, parameters)
    assert (error.value.field or "").startswith("tools[0].function.parameters")


PARTS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"type": "object", "patternProperties": {"^x": {"type": "integer"}}}, "patternProperties"),
    ({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1}, "minProperties"),
    ({"type": "object", "properties": {"a b": {}, "n": {"type": "integer"}}}, "properties.a b"),
)
WRAPPED = (lambda part: part, lambda part: {"anyOf": [part]}, lambda part: {"$ref": "#/$defs/d", "$defs": {"d": part}})


def form(tool_format: ToolFormat, parameters: Any, *, is_strict: bool = False) -> Form:
    function = {"name": "f", "parameters": parameters, "strict": is_strict}
    tool_use = ToolUse(tools=({"type": "function", "function": function},))
    return form_of(GenerationRequest(prompt=ChatPrompt((), tool_use=tool_use), params=Params()), tool_format)


@EVERY_FORMAT
@pytest.mark.parametrize(("part", "keyword"), PARTS, ids=[keyword for _, keyword in PARTS])
def test_what_a_notation_cannot_write_is_listed_and_refused_with_strict(
    tool_format: ToolFormat, part: Any, keyword: str
) -> None:
    place = "tools[0].function.parameters"
    for wrap, where in zip(WRAPPED, ("", ".anyOf[0]", ".$defs.d"), strict=True):
        written = form(tool_format, wrap(part))
        assert written.ignored_keywords == (f"{place}{where}.{keyword}",)
        assert accepts(written.grammar, tool_format.calls_text([("f", "{}")]))
        assert accepts(written.grammar, tool_format.calls_text([("f", '{"n": 5}')]))
        with pytest.raises(Unsupported, match=re.escape(f"{place}{where}.{keyword}: ")):
            form(tool_format, wrap(part), is_strict=True)
    inside = form(tool_format, {"properties": {"o": part}, "required": ["o"]})
    is_nested = tool_format.notation is not None and tool_format.notation.is_nested
    assert inside.ignored_keywords == ((f"{place}.properties.o.{keyword}",) if is_nested else ())


@EVERY_FORMAT
def test_a_required_argument_that_a_notation_cannot_write_is_refused(tool_format: ToolFormat) -> None:
    with pytest.raises(InvalidRequest, match="'a b': keys in this model's calls"):
        form(tool_format, {"properties": {"a b": {}}, "required": ["a b"]})


def chain(num: int, part: Any) -> dict[str, Any]:
    """Return a schema whose definitions lead to each other."""
    definitions = {f"d{n}": part(f"#/$defs/d{n + 1}") for n in range(num)} | {f"d{num}": {"type": "string"}}
    return {"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions}


# Each of these crashed llguidance or took all memory, in one of the notations, without a limit or a memory of parts.
@EVERY_FORMAT
@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": {f"p{n}": {"type": "string"} for n in range(2000)}, "required": [f"p{n}" for n in range(2000)]},
        chain(100, lambda reference: {"properties": {**{f"p{n}": {} for n in range(30)}, "a": {"$ref": reference}}}),
        chain(60, lambda reference: {"anyOf": [{"$ref": reference}, {"$ref": reference}, {"type": "boolean"}]}),
        chain(60, lambda reference: {"allOf": [{"$ref": reference}, {"$ref": reference}]}),
        chain(60, lambda reference: {"anyOf": [{"$ref": reference}, {"$ref": reference}], "minLength": 1}),
    ],
    ids=["required", "long chain", "choices", "parts", "choices with parts"],
)
def test_a_hostile_schema_is_enforced_or_refused_quickly(tool_format: ToolFormat, parameters: Any) -> None:
    with contextlib.suppress(InvalidRequest):
        lark_to_grammar(grammar(tool_format, parameters))
