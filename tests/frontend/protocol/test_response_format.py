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


GRAMMAR = 'root ::= "a"'
OUTPUTS: list[tuple[str, dict[str, Any], StructuredOutput | None]] = [
    ("response_format", {"type": "text"}, None),
    ("response_format", {"type": "json_object"}, StructuredOutput(OutputFormat.JSON_OBJECT)),
    (
        "response_format",
        {"type": "json_schema", "json_schema": {"name": "x"}},
        StructuredOutput(OutputFormat.JSON_OBJECT),
    ),
    ("response_format", {"type": "regex", "regex": "[a-z]+"}, StructuredOutput(OutputFormat.REGEX, "[a-z]+")),
    ("response_format", {"type": "choice", "choice": ["é"]}, StructuredOutput(OutputFormat.CHOICE, '["é"]')),
    ("response_format", {"type": "grammar", "grammar": GRAMMAR}, StructuredOutput(OutputFormat.GRAMMAR, GRAMMAR)),
    ("response_format", {"type": "ebnf", "ebnf": GRAMMAR}, StructuredOutput(OutputFormat.GRAMMAR, GRAMMAR)),
    ("structured_outputs", {"json_object": True}, StructuredOutput(OutputFormat.JSON_OBJECT)),
    ("structured_outputs", {"json": {}}, StructuredOutput(OutputFormat.JSON_SCHEMA, "{}", is_strict=False)),
    ("structured_outputs", {"choice": ["a"]}, StructuredOutput(OutputFormat.CHOICE, '["a"]')),
    ("structured_outputs", {"grammar": "x"}, StructuredOutput(OutputFormat.GRAMMAR, "x")),
    (
        "structured_outputs",
        {"regex": "a", "json_object": False, "choice": None},
        StructuredOutput(OutputFormat.REGEX, "a"),
    ),
]


@pytest.mark.parametrize(("field", "form", "output"), OUTPUTS)
def test_each_form_is_its_structured_output(field: str, form: dict[str, Any], output: StructuredOutput | None) -> None:
    assert output_of(**{field: form}) == output


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
    ("fields", "param"),
    [
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
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
        ({"response_format": {"type": "choice", "choice": []}}, "response_format.choice"),
        ({"response_format": {"type": "choice", "choice": ["a", ""]}}, "response_format.choice[1]"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json"),
    ],
)
def test_a_malformed_value_is_refused_by_place(fields: dict[str, Any], param: str) -> None:
    error = refusal(ChatCompletionRequest, CHAT | fields, validation_status=422)
    assert (type(error), error.status, error.param) == (ValidationFailed, 422, param)


MISSING = [({"type": kind}, kind) for kind in ("json_schema", "regex", "choice", "grammar", "ebnf")]
FOREIGN: list[tuple[dict[str, Any], str]] = [
    ({"type": "json_object", "json_schema": {"name": "x", "schema": SCHEMA}}, "json_schema"),
    ({"type": "ebnf", "ebnf": "x", "grammar": "y"}, "grammar"),
    ({"type": "json_schema", "json_schema": {"name": "x"}, "schema": SCHEMA}, "schema"),
]


@pytest.mark.parametrize(("fields", "param"), [*MISSING, *FOREIGN])
def test_a_format_has_the_field_of_its_type_and_no_other(fields: dict[str, Any], param: str) -> None:
    error = refusal(ChatCompletionRequest, CHAT | {"response_format": fields})
    assert (type(error), error.status, error.param) == (InvalidRequest, 400, f"response_format.{param}")


@pytest.mark.parametrize("fields", [{}, {"json_object": False}, {"regex": "a", "choice": ["b"]}])
def test_structured_outputs_are_exactly_one(fields: dict[str, Any]) -> None:
    error = refusal(ChatCompletionRequest, CHAT | {"structured_outputs": fields})
    assert (type(error), error.status, error.param) == (InvalidRequest, 400, "structured_outputs")
