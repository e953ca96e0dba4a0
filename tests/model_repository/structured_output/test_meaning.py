"""A schema has the same meaning for constrained decoding as for a validator, except for the listed keywords."""

import enum
import json
import pathlib
import uuid
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from model_repository.contract.request import OutputFormat, StructuredOutput
from model_repository.errors import InvalidRequest
from tests.model_repository.structured_output.acceptance import accepts, accepts_json, ignored_keywords

NUMBERS = {
    "minimum": st.integers(-3, 8) | st.sampled_from([-0.5, 2.5]),
    "maximum": st.integers(-3, 12) | st.sampled_from([-0.5, 2.5]),
    "exclusiveMinimum": st.integers(-3, 8) | st.sampled_from([-0.5, 2.5]),
    "exclusiveMaximum": st.integers(-3, 12) | st.sampled_from([-0.5, 2.5]),
    "multipleOf": st.sampled_from([1, 2, 3, 0.5]),
}
LENGTHS = {"minLength": st.integers(0, 3), "maxLength": st.integers(0, 4)}
COUNTS = {"minItems": st.integers(0, 3), "maxItems": st.integers(0, 3)}
NAMES = ["a", "b", "c"]


def optional(keywords):
    return st.fixed_dictionaries({}, optional=keywords)


def objects(schemas):
    properties = st.dictionaries(st.sampled_from(NAMES), schemas, min_size=1)
    required = st.lists(st.sampled_from(NAMES), unique=True)
    fixed: Any = {"type": st.just("object"), "properties": properties}
    return st.fixed_dictionaries(fixed, optional={"required": required}).map(
        lambda found: found | {"additionalProperties": False, "properties": dict(sorted(found["properties"].items()))}
    )


LEAVES = st.one_of(
    *(optional(NUMBERS).map(lambda found, name=name: {"type": name} | found) for name in ("integer", "number")),
    optional(LENGTHS).map(lambda found: {"type": "string"} | found),
    st.sampled_from([{"type": ["boolean", "null"]}, {"const": "ab"}, {"enum": [1, "a", None, [2]]}, {}, True]),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda schemas: st.one_of(
        objects(schemas),
        st.tuples(schemas, optional(COUNTS)).map(lambda found: {"type": "array", "items": found[0]} | found[1]),
        st.lists(schemas, min_size=1, max_size=3).map(lambda found: {"anyOf": found}),
        st.lists(schemas, min_size=1, max_size=2).map(lambda found: {"type": "array", "prefixItems": found}),
    ),
    max_leaves=5,
)
VALUES = st.recursive(
    st.integers(-4, 13) | st.sampled_from([-1.5, 0.5, 2.5]) | st.sampled_from(["", "ab", "é😀", "abcde", None, True]),
    lambda values: (
        st.lists(values, max_size=4)
        | st.dictionaries(st.sampled_from(NAMES), values).map(lambda found: dict(sorted(found.items())))
    ),
    max_leaves=5,
)


def is_satisfiable(schema):
    try:
        accepts_json(schema, None)
    except InvalidRequest:
        return False
    return True


@settings(max_examples=60, deadline=None)
@given(SCHEMAS, st.lists(VALUES, min_size=3, max_size=6))
def test_enforced_schemas_agree_with_a_validator(schema, values):
    reader = jsonschema.Draft202012Validator(schema)
    for value in values if is_satisfiable(schema) else ():
        assert accepts_json(schema, value) == reader.is_valid(value)


# llguidance takes each for another name than the listed one.
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a\n": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
        {"allOf": [{"properties": {"a\n": {"type": "null"}}}, {"required": ["a\n"]}]},
        {"patternProperties": {"^a": {"type": "null"}}, "additionalProperties": {"type": "integer"}},
        {"properties": {"a\n": {"type": "null"}}, "patternProperties": {"^a": {}}, "additionalProperties": False},
    ],
)
def test_another_notation_of_a_listed_name_does_not_escape_its_schema(schema):
    form = StructuredOutput(OutputFormat.JSON_SCHEMA, json.dumps({"type": "object", **schema}))
    assert accepts(form, '{"a\\n": null}')
    assert not any(accepts(form, f'{{"{name}": 1}}') for name in ("a\\n", "a\\u000a", "\\u0061\\n", "\\u0061\\u000A"))


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


UNION = TypeAdapter(Annotated[Cat | Dog, Field(discriminator="kind")]).json_schema()
NEVER = object()

# A schema, its ignored keywords, a value that must be possible, and one that must not.
PYDANTIC: list[tuple[Any, ...]] = [
    (set[int], ["uniqueItems"], [1, 2], ["a"]),
    (frozenset[str], ["uniqueItems"], ["a"], [1]),
    (bytes, ["format"], "a", 1),
    (pathlib.Path, ["format"], "/tmp", 1),
    (dict[Literal["a", "b"], int], ["propertyNames"], {"a": 1}, {"a": "1"}),
    (dict[str, float], [], {"a": 1.5}, {"a": "1"}),
    (tuple[int, str], [], [1, "a"], [1, 2]),
    (Decimal, [], 1.5, None),
    (datetime, [], "2024-02-29T00:00:00Z", "2023-02-29T00:00:00Z"),
    (date, [], "2024-02-29", "2023-02-29"),
    (time, [], "10:00:00Z", "25:00:00Z"),
    (timedelta, [], "P1D", "1 day"),
    (uuid.UUID, [], "123e4567-e89b-42d3-a456-426614174000", "1"),
    (Colour, [], "red", "green"),
    (int | None, [], None, "1"),
]
OF_FORMAT = [("string", name) for name in ("byte", "binary", "password", "path", "uri-reference", "base64", "cidrv4")]
OF_FORMAT += [("string", name) for name in ("jwt", "emoji", "e164")]
OF_FORMAT += [("integer", "int32"), ("integer", "int64"), ("number", "float"), ("number", "double")]
HOSTNAME = r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?\.?$"
QWEN_CODE = {
    "type": "object",
    "properties": {
        "paths": {"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True},
        "mode": {"type": "string", "enum": ["a", "b"], "enumDescriptions": ["A", "B"], "required": True},
        "limit": {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "markdownDescription": "x"},
        "note": {"type": "string", "nullable": True},
    },
    "required": ["paths"],
    "propertyOrdering": ["paths"],
    "cache_control": {"type": "ephemeral"},
}
IN_QWEN_CODE = "properties.paths.uniqueItems properties.mode.enumDescriptions properties.mode.required"
IN_QWEN_CODE += " properties.limit.markdownDescription propertyOrdering cache_control"
OTHERS = [
    ({"type": "string", "format": "hostname", "pattern": HOSTNAME}, ["pattern"], "a-b", "-"),
    ({"type": "string", "pattern": r"^\+[1-9]\d{6,14}$", "format": "e164"}, ["format"], "+4912345678", "+0"),
    ({"type": "string", "pattern": r"^(\p{Extended_Pictographic}|\p{Emoji_Component})+$"}, [], "😀", "a"),
    (UNION, ["oneOf"], {"kind": "dog", "name": "x"}, {"kind": "dog", "name": 1}),
    ({"oneOf": [{"minimum": 1}, {"maximum": 5}], "type": "integer"}, ["oneOf"], 3, "a"),
    ({"items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False}, [], [1, "a"], [1, "a", 2]),
    ({"type": "integer", "maximum": 5, "exclusiveMaximum": True}, [], 4, 5),
    ({"type": "integer", "nullable": True}, [], None, "a"),
    ({"type": "object", "properties": {"a\n": {}}, "additionalProperties": False}, [], {"a\n": 1}, {"a": 1}),
    ({"patternProperties": {"^(?=a)": {}}, "additionalProperties": False}, NEVER, {"a": 1}, NEVER),
    ({"anyOf": [{"$id": "x", "$ref": "#/a"}, {"type": "null"}]}, ["anyOf[0].$id"], 1, NEVER),
    ({"$id": "https://x.org/y", "type": "integer"}, [], 1, "a"),
    (QWEN_CODE, IN_QWEN_CODE.split(), {"paths": ["a"], "limit": 1, "note": None}, {"paths": ["a"], "limit": 0}),
]
CORPUS = [(TypeAdapter(kind).json_schema(), *rest) for kind, *rest in PYDANTIC]
CORPUS += [({"type": kind, "format": name}, ["format"], {"string": "a"}.get(kind, 3), None) for kind, name in OF_FORMAT]
CORPUS += OTHERS


@pytest.mark.parametrize(("schema", "ignored", "good", "bad"), CORPUS)
def test_schemas_of_clients_are_enforced_as_far_as_they_can_be(schema, ignored, good, bad):
    found = [path.removeprefix("schema.") for path in ignored_keywords(schema)]
    assert ignored is NEVER or sorted(found) == sorted(ignored)
    assert accepts_json(schema, good, is_strict=False)
    assert bad is NEVER or not accepts_json(schema, bad, is_strict=False)
