"""The forms in which an answer can be asked for, as constraints on the completion."""

from __future__ import annotations

import json
from typing import Any

import pytest

from frontend.errors import InvalidRequest, ValidationFailed
from frontend.protocol.chat import ChatCompletionRequest
from model_repository.contract.request import OutputFormat, StructuredOutput
from tests.frontend.bodies import CHAT, chat, refusal

SCHEMA = {"type": "object", "properties": {"größe": {"type": "integer"}}, "required": ["größe"]}


def output_of(**fields: Any) -> StructuredOutput | None:
    request = chat(**fields)
    asked = request.structured_outputs or request.response_format
    assert asked is not None
    return asked.structured_output()


@pytest.mark.parametrize(
    ("response_format", "output"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, StructuredOutput(OutputFormat.JSON_OBJECT)),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, StructuredOutput(OutputFormat.JSON_OBJECT)),
        ({"type": "regex", "regex": "[a-z]+"}, StructuredOutput(OutputFormat.REGEX, "[a-z]+")),
        ({"type": "choice", "choice": ["é", "b"]}, StructuredOutput(OutputFormat.CHOICE, '["é","b"]')),
        ({"type": "grammar", "grammar": 'root ::= "a"'}, StructuredOutput(OutputFormat.GRAMMAR, 'root ::= "a"')),
        ({"type": "ebnf", "ebnf": 'root ::= "a"'}, StructuredOutput(OutputFormat.GRAMMAR, 'root ::= "a"')),
    ],
)
def test_each_response_format_is_its_structured_output(
    response_format: dict[str, Any], output: StructuredOutput | None
) -> None:
    assert output_of(response_format=response_format) == output


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
    output = output_of(**fields)
    assert output is not None
    assert output.format is OutputFormat.JSON_SCHEMA
    assert json.loads(output.content) == SCHEMA
    assert output.is_strict == ('"strict": true' in json.dumps(fields))


@pytest.mark.parametrize(
    ("structured_outputs", "output"),
    [
        ({"json_object": True}, StructuredOutput(OutputFormat.JSON_OBJECT)),
        ({"json": {}}, StructuredOutput(OutputFormat.JSON_SCHEMA, "{}", is_strict=False)),
        ({"regex": "a"}, StructuredOutput(OutputFormat.REGEX, "a")),
        ({"choice": ["a"]}, StructuredOutput(OutputFormat.CHOICE, '["a"]')),
        ({"grammar": "x"}, StructuredOutput(OutputFormat.GRAMMAR, "x")),
        ({"regex": "a", "json_object": False, "choice": None}, StructuredOutput(OutputFormat.REGEX, "a")),
    ],
)
def test_vllms_names_say_the_same(structured_outputs: dict[str, Any], output: StructuredOutput) -> None:
    assert output_of(structured_outputs=structured_outputs) == output


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
