"""The fields that both endpoints share: ranges, types, rules between them."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.errors import InvalidRequest, ValidationFailed
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import CompletionRequest
from tests.frontend.bodies import COMPLETION, ENDPOINTS, completion, read, refusal

MAX_INT32 = 2**31 - 1
BOTH = pytest.mark.parametrize(("model", "body"), ENDPOINTS)

# The ends of each range, which are in it, and what lies just outside of it.
NUMBERS: list[tuple[str, tuple[float, float], tuple[float, float]]] = [
    ("max_completion_tokens", (1, MAX_INT32), (0, MAX_INT32 + 1)),
    ("min_tokens", (0, MAX_INT32), (-1, MAX_INT32 + 1)),
    ("temperature", (0, 2), (-0.1, 2.1)),
    ("top_p", (0, 1), (-0.1, 1.1)),
    ("top_k", (-1, MAX_INT32), (-2, MAX_INT32 + 1)),
    ("min_p", (0, 1), (-0.1, 1.1)),
    ("seed", (-(2**63), 2**63 - 1), (-(2**63) - 1, 2**63)),
    ("repetition_penalty", (0.001, 2), (0, 2.1)),
    ("presence_penalty", (-2, 2), (-2.1, 2.1)),
    ("frequency_penalty", (-2, 2), (-2.1, 2.1)),
    ("mirostat_target", (0, 20), (-0.1, 20.1)),
    ("mirostat_lr", (0.001, 1), (0, 1.1)),
    ("mirostat_tau", (0, 20), (-0.1, 20.1)),
    ("mirostat_eta", (0.001, 1), (0, 1.1)),
    ("n", (1, 128), (0, 129)),
    ("stream_interval_ms", (0, 1000), (-1, 1001)),
]
INTEGERS = ["max_completion_tokens", "max_tokens", "min_tokens", "top_k", "seed", "n", "mirostat", "stream_interval_ms"]
BOOLEANS = ["include_stop_str_in_output", "ignore_eos", "return_token_ids", "stream"]


@BOTH
@pytest.mark.parametrize(("name", "ends", "outside"), NUMBERS)
def test_a_range_has_its_ends_and_nothing_beyond_them(
    model: Any, body: dict[str, Any], name: str, ends: tuple[float, float], outside: tuple[float, float]
) -> None:
    body = body | {"stream": True}  # which some of them need
    for value in ends:
        assert getattr(read(model, body | {name: value})[0], name) == value
    for value in outside:
        error = refusal(model, body | {name: value})
        assert isinstance(error, ValidationFailed)
        assert (error.status, error.param) == (400, name)
        assert error.message.startswith(f"{name}=")
        assert error.detail[0]["loc"] == ["body", name]


@BOTH
@pytest.mark.parametrize("name", [*(name for name, *_ in NUMBERS), "max_tokens"])
@pytest.mark.parametrize("value", [True, False, "1", [1], {"a": 1}])
def test_what_is_no_number_is_none(model: Any, body: dict[str, Any], name: str, value: Any) -> None:
    error = refusal(model, body | {name: value})
    assert (error.status, error.param, error.code) == (400, name, "invalid_type")


@BOTH
@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [1.5, 2.0])
def test_a_fraction_is_no_integer(model: Any, body: dict[str, Any], name: str, value: float) -> None:
    error = refusal(model, body | {name: value})
    assert (error.param, error.code) == (name, "invalid_type")


@BOTH
@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize("value", [0, 1, 123, "true", []])
def test_what_is_no_boolean_is_none(model: Any, body: dict[str, Any], name: str, value: Any) -> None:
    error = refusal(model, body | {name: value})
    assert (error.param, error.code) == (name, "invalid_type")


@BOTH
@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"model": None}, "model", "invalid_type"),
        ({"model": ""}, "model", "invalid_value"),
        ({"model": 5}, "model", "invalid_type"),
        ({"stop": 5}, "stop", "invalid_type"),
        ({"stop": ""}, "stop[0]", "invalid_value"),
        ({"stop": ["a", ""]}, "stop[1]", "invalid_value"),
        ({"stop": ["a", 1]}, "stop[1]", "invalid_type"),
        ({"stop": ["a"] * 17}, "stop", "invalid_value"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids", "invalid_value"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "invalid_value"),
        ({"stop_token_ids": [True]}, "stop_token_ids[0]", "invalid_type"),
        ({"stop_token_ids": 5}, "stop_token_ids", "invalid_type"),
        ({"allowed_token_ids": []}, "allowed_token_ids", "invalid_value"),
        ({"allowed_token_ids": [1] * 1025}, "allowed_token_ids", "invalid_value"),
        ({"allowed_token_ids": [1, -1]}, "allowed_token_ids[1]", "invalid_value"),
        ({"allowed_token_ids": [2**31]}, "allowed_token_ids[0]", "invalid_value"),
        ({"allowed_token_ids": ["1"]}, "allowed_token_ids[0]", "invalid_type"),
        ({"allowed_token_ids": 5}, "allowed_token_ids", "invalid_type"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x", "invalid_value"),
        ({"logit_bias": {"01": 1}}, "logit_bias.01", "invalid_value"),
        ({"logit_bias": {"-1": 1}}, "logit_bias.-1", "invalid_value"),
        ({"logit_bias": {"9999999999": 1}}, "logit_bias.9999999999", "invalid_value"),
        ({"logit_bias": {"1": 100.1}}, "logit_bias.1", "invalid_value"),
        ({"logit_bias": {"1": -100.1}}, "logit_bias.1", "invalid_value"),
        ({"logit_bias": {"1": "1"}}, "logit_bias.1", "invalid_type"),
        ({"logit_bias": {str(each): 1 for each in range(1025)}}, "logit_bias", "invalid_value"),
        ({"logit_bias": [1]}, "logit_bias", "invalid_type"),
        ({"bad_words": ["a", ""]}, "bad_words[1]", "invalid_value"),
        ({"bad_words": ["a" * 257]}, "bad_words[0]", "invalid_value"),
        ({"bad_words": ["a"] * 257}, "bad_words", "invalid_value"),
        ({"bad_words": "a"}, "bad_words", "invalid_type"),
        ({"mirostat": 1}, "mirostat", "invalid_value"),
        ({"mirostat": "2"}, "mirostat", "invalid_value"),
        ({"mirostat": False}, "mirostat", "invalid_type"),
        ({"mirostat": True}, "mirostat", "invalid_type"),
        ({"context_length_exceeded_behavior": "cut"}, "context_length_exceeded_behavior", "invalid_value"),
        ({"stream": True, "stream_options": True}, "stream_options", "invalid_type"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "invalid_type"),
        ({"user": 5}, "user", "invalid_type"),
        ({"safety_identifier": 5}, "safety_identifier", "invalid_type"),
        ({"prompt_cache_key": 5}, "prompt_cache_key", "invalid_type"),
        ({"metadata": "x"}, "metadata", "invalid_type"),
    ],
)
def test_a_bad_value_is_refused_with_field_value_and_rule(
    model: Any, body: dict[str, Any], fields: dict[str, Any], param: str, code: str
) -> None:
    error = refusal(model, body | fields)
    assert isinstance(error, ValidationFailed)
    assert (error.status, error.param, error.code) == (400, param, code)
    assert error.message.startswith(f"{param}=")
    assert error.detail[0]["loc"][0] == "body"


@BOTH
def test_the_longest_lists_are_accepted(model: Any, body: dict[str, Any]) -> None:
    longest = {
        "stop": ["a", "b", "c", "d"],
        "stop_token_ids": [MAX_INT32] * 64,
        "allowed_token_ids": list(range(1024)),
        "bad_words": ["é" * 256] * 256,
        "logit_bias": {str(token_id): 100 for token_id in range(1024)},
    }
    request, unknown = read(model, body | longest)
    assert {name: getattr(request, name) for name in longest} == longest
    assert unknown == []


@pytest.mark.parametrize(("stop", "expected"), [("a", ["a"]), (["a", "b"], ["a", "b"]), ([], []), (None, None)])
def test_stop_is_one_text_or_several_or_none(stop: Any, expected: Any) -> None:
    assert completion(stop=stop).stop == expected


@BOTH
def test_null_is_the_same_as_absent(model: Any, body: dict[str, Any]) -> None:
    plain, _ = read(model, body)
    optional = [field.alias or name for name, field in model.model_fields.items() if not field.is_required()]
    nulled, unknown = read(model, body | dict.fromkeys(optional))
    assert nulled.model_dump() == plain.model_dump()
    assert unknown == []


@BOTH
def test_every_example_is_accepted_with_what_it_needs(model: Any, body: dict[str, Any]) -> None:
    # The parameter table tries them.
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra
        needed = extra.get("x-needs", {}) if isinstance(extra, dict) else {}
        for example in field.examples or ():
            assert read(model, body | needed | {name: example})[1] == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mirostat_target": 1.5, "mirostat_tau": 2.5}, "mirostat_tau"),
        ({"mirostat_lr": 0.1, "mirostat_eta": 0.2}, "mirostat_eta"),
        ({"mirostat": 0, "mirostat_target": 1.5}, "mirostat"),
        ({"mirostat": 0, "mirostat_eta": 0.2}, "mirostat"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {}, "stream": False}, "stream_options"),
        ({"stream_interval_ms": 40}, "stream_interval_ms"),
        ({"stream_interval_ms": 0, "stream": False}, "stream_interval_ms"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ],
)
@BOTH
def test_fields_that_do_not_go_together_are_refused(
    model: Any, body: dict[str, Any], fields: dict[str, Any], param: str
) -> None:
    # FastAPI's status is for the schema only: these rules come after it.
    for status in (400, 422):
        error = refusal(model, body | fields, validation_status=status)
        assert type(error) is InvalidRequest
        assert (error.status, error.param, error.code) == (400, param, "invalid_value")
        assert error.message.startswith(f"{param}: ")
        assert error.detail == error.message


@pytest.mark.parametrize(
    "fields",
    [
        {"mirostat_target": 1.5, "mirostat_tau": 1.5},
        {"mirostat": 2},
        {"mirostat": 0},
        {"mirostat": 2, "mirostat_lr": 0.5},
        {"response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}},
        {"stream": True, "stream_options": {}},
    ],
)
def test_fields_that_say_the_same_go_together(fields: dict[str, Any]) -> None:
    assert read(CompletionRequest, COMPLETION | fields)[1] == []


def test_the_rule_of_stream_options_is_said_in_openais_words() -> None:
    error = refusal(CompletionRequest, COMPLETION | {"stream_options": {"include_usage": True}})
    assert error.message == "stream_options: `stream_options` can only be used when `stream` is True"


def test_bookkeeping_is_collected() -> None:
    fields = {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k"}
    request, unknown = read(ChatCompletionRequest, COMPLETION | {"messages": "hi", "prompt": None} | fields)
    assert request.bookkeeping() == fields
    assert unknown == []
