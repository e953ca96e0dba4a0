"""The fields of both endpoints: ranges and types from their own description, and the rules between fields."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.errors import InvalidRequest, ValidationFailed
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import CompletionRequest
from model_repository.contract.spec import MAX_INT32
from model_repository.contract.tensors import INPUTS
from tests.frontend.bodies import CHAT, COMPLETION, ENDPOINTS, read, refusal

BOTH = pytest.mark.parametrize(("model", "body"), ENDPOINTS)
WRONG: dict[str, list[Any]] = {
    "integer": [True, False, "1", 1.5, 2.0, [1], {"a": 1}],
    "number": [True, False, "1", [1], {"a": 1}],
    "boolean": [0, 1, "true", []],
    "string": [5, True, ["a"]],
    "object": ["x", True, [1]],
}


def kinds(model: Any, *types: str) -> list[Any]:
    """Return the fields that have one of these JSON types and no other, as test parameters with their description."""
    found = []
    for name, schema in model.model_json_schema()["properties"].items():
        forms = [form for form in schema.get("anyOf", [schema]) if form.get("type") != "null"]
        if len(forms) == 1 and forms[0].get("type") in types and "enum" not in forms[0]:
            found.append(pytest.param(model, name, forms[0], id=f"{model.__name__}.{name}"))
    return found


def all_kinds(*types: str) -> pytest.MarkDecorator:
    fields = kinds(ChatCompletionRequest, *types) + kinds(CompletionRequest, *types)
    return pytest.mark.parametrize(("model", "name", "schema"), fields)


def body_for(model: Any, name: str) -> dict[str, Any]:
    """Return a body with all that a field needs."""
    extra = model.model_fields[name].json_schema_extra
    body = CHAT if model is ChatCompletionRequest else COMPLETION | {"echo": True}  # which max_tokens=0 needs
    return body | (extra.get("x-needs", {}) if isinstance(extra, dict) else {})


@all_kinds("integer", "number")
def test_a_range_has_its_ends_and_nothing_beyond_them(model: Any, name: str, schema: dict[str, Any]) -> None:
    body, step = body_for(model, name), 1 if schema["type"] == "integer" else 0.001
    is_open = "exclusiveMinimum" in schema
    low, high = schema["exclusiveMinimum" if is_open else "minimum"], schema["maximum"]
    for value in (low + step * is_open, high):
        assert getattr(read(model, body | {name: value}, max_logprobs=20)[0], name) == value
    for value in (low if is_open else low - step, high + step):
        error = refusal(model, body | {name: value}, max_logprobs=20)
        assert (type(error), error.status, error.param) == (ValidationFailed, 400, name)
        assert error.code == ("invalid_type" if abs(value) > 2**63 else "invalid_value")
        assert error.message.startswith(f"{name}=")
        assert error.envelope()["detail"][0]["loc"] == ["body", name]


def test_a_field_has_the_range_of_its_tensor() -> None:
    # These three have other values over HTTP than as tensors.
    names = INPUTS.keys() - {"max_tokens", "priority", "seed"}
    fields = [each.values for each in kinds(CompletionRequest, "integer", "number") if each.values[1] in names]
    assert len(fields) >= 10
    for _, name, schema in fields:
        spec = INPUTS[name]
        assert schema["exclusiveMinimum" if spec.is_low_open else "minimum"] == spec.low
        assert schema["maximum"] == (MAX_INT32 if spec.high is None else spec.high)


@all_kinds(*WRONG)
def test_a_value_of_another_type_is_refused(model: Any, name: str, schema: dict[str, Any]) -> None:
    for value in WRONG[schema["type"]]:
        error = refusal(model, body_for(model, name) | {name: value})
        assert (error.status, error.param, error.code) == (400, name, "invalid_type"), value


@BOTH
@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"model": ""}, "model", "invalid_value"),
        ({"stop": 5}, "stop", "invalid_type"),
        ({"stop": ""}, "stop[0]", "invalid_value"),
        ({"stop": ["a"] * 17}, "stop", "invalid_value"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids", "invalid_value"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "invalid_value"),
        ({"stop_token_ids": [True]}, "stop_token_ids[0]", "invalid_type"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "invalid_value"),
        ({"allowed_token_ids": [1] * 1025}, "allowed_token_ids", "invalid_value"),
        ({"allowed_token_ids": [2**31]}, "allowed_token_ids[0]", "invalid_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x", "invalid_value"),
        ({"logit_bias": {"01": 1}}, "logit_bias.01", "invalid_value"),
        ({"logit_bias": {"9999999999": 1}}, "logit_bias.9999999999", "invalid_value"),
        ({"logit_bias": {"1": 100.1}}, "logit_bias.1", "invalid_value"),
        ({"logit_bias": {"1": "1"}}, "logit_bias.1", "invalid_type"),
        ({"logit_bias": {str(each): 1 for each in range(1025)}}, "logit_bias", "invalid_value"),
        ({"bad_words": ["a", ""]}, "bad_words[1]", "invalid_value"),
        ({"bad_words": ["a" * 257]}, "bad_words[0]", "invalid_value"),
        ({"bad_words": ["a"] * 257}, "bad_words", "invalid_value"),
        ({"mirostat": 1}, "mirostat", "invalid_value"),
        ({"mirostat": True}, "mirostat", "invalid_type"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "invalid_value"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "invalid_value"),
        ({"prompt_logprobs": 21}, "prompt_logprobs", "invalid_value"),
        ({"context_length_exceeded_behavior": "cut"}, "context_length_exceeded_behavior", "invalid_value"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "invalid_type"),
    ],
)
def test_a_bad_value_is_refused_with_field_value_and_rule(
    model: Any, body: dict[str, Any], fields: dict[str, Any], param: str, code: str
) -> None:
    error = refusal(model, body | fields)
    assert (type(error), error.status, error.param, error.code) == (ValidationFailed, 400, param, code)
    assert error.message.startswith(f"{param}=")
    assert error.envelope()["detail"][0]["loc"][0] == "body"


def test_an_empty_list_is_named() -> None:
    assert refusal(ChatCompletionRequest, {"model": "a", "messages": []}).message == "messages=[]: must not be empty"


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"seed": -(2**63) - 1}, "Input should be a valid integer of 64 bits"),  # the parser makes a float of it
        ({"max_tokens": -1}, "or send the context window for no other limit"),
        ({"max_completion_tokens": -1}, "or send the context window for no other limit"),
    ],
)
@BOTH
def test_a_number_without_its_meaning_in_other_places_is_explained(
    model: Any, body: dict[str, Any], fields: dict[str, Any], end: str
) -> None:
    assert refusal(model, body | fields).message.endswith(end)


@BOTH
def test_the_longest_lists_are_accepted(model: Any, body: dict[str, Any]) -> None:
    longest: dict[str, Any] = {
        "stop": ["a"] * 16,
        "stop_token_ids": [MAX_INT32] * 64,
        "allowed_token_ids": list(range(1024)),
        "bad_words": ["é" * 64] * 256,
        "logit_bias": {str(token_id): 100 for token_id in range(1024)},
    }
    request, unknown = read(model, body | longest)
    assert {name: getattr(request, name) for name in longest} == longest
    assert unknown == []


@BOTH
def test_null_is_the_same_as_absent(model: Any, body: dict[str, Any]) -> None:
    optional = [field.alias or name for name, field in model.model_fields.items() if not field.is_required()]
    nulled, unknown = read(model, body | dict.fromkeys(optional))
    assert nulled.model_dump() == read(model, body)[0].model_dump()
    assert unknown == []


@BOTH
def test_every_example_is_accepted_with_its_companions(model: Any, body: dict[str, Any]) -> None:
    for name, field in model.model_fields.items():
        for example in field.examples or ():
            assert read(model, body | body_for(model, name) | {name: example})[1] == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mirostat_target": 1.5, "mirostat_tau": 2.5}, "mirostat_tau"),
        ({"mirostat": 0, "mirostat_target": 1.5}, "mirostat"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_interval_ms": 0, "stream": False}, "stream_interval_ms"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "regex"),
    ],
)
@BOTH
def test_contradicting_fields_are_400_also_with_fastapis_status(
    model: Any, body: dict[str, Any], fields: dict[str, Any], param: str
) -> None:
    error = refusal(model, body | fields, validation_status=422)
    assert (type(error), error.status, error.param, error.code) == (InvalidRequest, 400, param, "invalid_value")
    assert error.message.startswith(f"{param}: ")
    assert error.detail == error.message
