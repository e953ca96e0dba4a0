"""The forms in which an answer can be asked for, as constraints on the completion."""

from __future__ import annotations

import json
from typing import Any

import pytest

from frontend.errors import InvalidRequest, ValidationFailed
from frontend.protocol.chat import ChatCompletionRequest
from model_repository.generation import Guide, GuideKind
from tests.frontend.bodies import CHAT, chat, refusal

SCHEMA = {"type": "object", "properties": {"größe": {"type": "integer"}}, "required": ["größe"]}


def guide_of(**fields: Any) -> Guide | None:
    request = chat(**fields)
    asked = request.structured_outputs or request.response_format
    assert asked is not None
    return asked.guide()


@pytest.mark.parametrize(
    ("response_format", "guide"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Guide(GuideKind.JSON_OBJECT)),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, Guide(GuideKind.JSON_OBJECT)),
        ({"type": "regex", "regex": "[a-z]+"}, Guide(GuideKind.REGEX, "[a-z]+")),
        ({"type": "choice", "choice": ["é", "b"]}, Guide(GuideKind.CHOICE, '["é","b"]')),
        ({"type": "grammar", "grammar": 'root ::= "a"'}, Guide(GuideKind.GRAMMAR, 'root ::= "a"')),
        ({"type": "ebnf", "ebnf": 'root ::= "a"'}, Guide(GuideKind.GRAMMAR, 'root ::= "a"')),
    ],
)
def test_each_response_format_is_its_guide(response_format: dict[str, Any], guide: Guide | None) -> None:
    assert guide_of(response_format=response_format) == guide


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": False}}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    ],
)
def test_a_schema_is_enforced_wherever_it_stands(fields: dict[str, Any]) -> None:
    guide = guide_of(**fields)
    assert guide is not None
    assert guide.kind is GuideKind.JSON_SCHEMA
    assert json.loads(guide.content) == SCHEMA
    assert guide.is_strict == ('"strict": true' in json.dumps(fields))


@pytest.mark.parametrize(
    ("structured_outputs", "guide"),
    [
        ({"json_object": True}, Guide(GuideKind.JSON_OBJECT)),
        ({"json": {}}, Guide(GuideKind.JSON_SCHEMA, "{}", is_strict=False)),
        ({"regex": "a"}, Guide(GuideKind.REGEX, "a")),
        ({"choice": ["a"]}, Guide(GuideKind.CHOICE, '["a"]')),
        ({"grammar": "x"}, Guide(GuideKind.GRAMMAR, "x")),
        ({"regex": "a", "json_object": False, "choice": None}, Guide(GuideKind.REGEX, "a")),
    ],
)
def test_vllms_names_say_the_same(structured_outputs: dict[str, Any], guide: Guide) -> None:
    assert guide_of(structured_outputs=structured_outputs) == guide


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_object", "schema": "{}"}}, "response_format.schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "two words"}}},
            "response_format.json_schema.name",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": True}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": 1}}},
            "response_format.json_schema.strict",
        ),
        ({"response_format": {"type": "regex", "regex": 5}}, "response_format.regex"),
        ({"response_format": {"type": "choice", "choice": []}}, "response_format.choice"),
        ({"response_format": {"type": "choice", "choice": ["a", ""]}}, "response_format.choice[1]"),
        ({"response_format": {"type": "choice", "choice": [1]}}, "response_format.choice[0]"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice"),
    ],
)
def test_what_is_malformed_is_refused_by_place(fields: dict[str, Any], param: str) -> None:
    error = refusal(ChatCompletionRequest, CHAT | fields, validation_status=422)
    assert (type(error), error.status, error.param) == (ValidationFailed, 422, param)


@pytest.mark.parametrize("kind", ["json_schema", "regex", "choice", "grammar", "ebnf"])
def test_what_a_format_needs_is_named_where_it_is_missing(kind: str) -> None:
    error = refusal(ChatCompletionRequest, CHAT | {"response_format": {"type": kind}})
    assert (type(error), error.status, error.param) == (InvalidRequest, 400, f"response_format.{kind}")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"type": "json_object", "json_schema": {"name": "x", "schema": SCHEMA}}, "json_schema"),
        ({"type": "text", "regex": "a"}, "regex"),
        ({"type": "ebnf", "ebnf": "x", "grammar": "y"}, "grammar"),
        ({"type": "json_schema", "json_schema": {"name": "x"}, "schema": SCHEMA}, "schema"),
    ],
)
def test_what_belongs_to_another_format_is_not_passed_over(fields: dict[str, Any], param: str) -> None:
    error = refusal(ChatCompletionRequest, CHAT | {"response_format": fields})
    assert (type(error), error.status, error.param) == (InvalidRequest, 400, f"response_format.{param}")


@pytest.mark.parametrize("fields", [{}, {"json_object": False}, {"regex": "a", "choice": ["b"]}])
def test_structured_outputs_are_exactly_one(fields: dict[str, Any]) -> None:
    error = refusal(ChatCompletionRequest, CHAT | {"structured_outputs": fields})
    assert (type(error), error.status, error.param) == (InvalidRequest, 400, "structured_outputs")
