"""Bodies to requests, or to errors that name field, value and rule."""

from __future__ import annotations

import json
from typing import Any

import pytest

from frontend.errors import MAX_DETAILS, InvalidJSON, ValidationFailed
from frontend.protocol.body import Body
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import CompletionRequest
from frontend.protocol.reading import MAX_NAMES, parse
from frontend.protocol.tokenization import DetokenizeRequest, TokenizeRequest
from frontend.settings import Settings
from tests.frontend.bodies import CHAT, COMPLETION, ENDPOINTS, USER, WEATHER, read, refusal

BOTH = pytest.mark.parametrize(("model", "body"), ENDPOINTS)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b'{"a":NaN}',
        b'{"a":1e999}',
        b'{"a":"\\ud800"}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":"\xff"}',
        b"[" * 1_000_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
    ids=range(11),
)
def test_a_body_that_is_no_json_object_in_utf8_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidJSON) as caught:
        parse(CompletionRequest, body, Settings())
    assert caught.value.status == 400


def test_the_depth_of_a_body_is_bounded() -> None:
    def nested(depth: int) -> bytes:
        """Return a body of this depth, with many lists beside each other."""
        inside = b"[" * (depth - 2) + b"]" * (depth - 2)
        return b'{"model":"m","prompt":[' + b"[1]," * 127 + b'[1]],"metadata":{"a":' + inside + b"}}"

    parse(CompletionRequest, nested(128), Settings())
    with pytest.raises(InvalidJSON, match="129 levels of nesting: at most 128 are read"):
        parse(CompletionRequest, nested(129), Settings())


def test_lists_and_objects_are_counted() -> None:
    body = {"model": "a", "prompt": "b"}
    parse(CompletionRequest, json.dumps(body | {"foo": [[]] * 19_990}).encode(), Settings())
    with pytest.raises(InvalidJSON, match="has 20002 lists and objects: at most 20000 are read"):
        parse(CompletionRequest, json.dumps(body | {"foo": [[]] * 20_000}).encode(), Settings())


@pytest.mark.parametrize("model", [ChatCompletionRequest, TokenizeRequest])
def test_content_parts_are_counted_over_all_messages(model: type[Body]) -> None:
    def body(*num_parts: int) -> dict[str, Any]:
        part = {"type": "text", "text": ""}
        return {"model": "m", "messages": [{"role": "user", "content": [part] * each} for each in num_parts]}

    read(model, body(4000, 96))
    error = refusal(model, body(4000, 97))
    assert error.param == "messages"
    assert "4097 content parts are more than 4096" in error.message


def test_every_failure_is_listed_in_fastapis_form() -> None:
    error = refusal(CompletionRequest, COMPLETION | {"temperature": 3, "n": "2", "stop": ["a", 5]})
    assert error.envelope()["detail"] == [
        {"loc": ["body", "stop", 1], "msg": "Input should be a valid string", "type": "string_type"},
        {"loc": ["body", "temperature"], "msg": "Input should be less than or equal to 2", "type": "less_than_equal"},
        {"loc": ["body", "n"], "msg": "Input should be a valid integer", "type": "int_type"},
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 3}, "temperature=3: Input should be less than or equal to 2"),
        ({"echo": 123}, "echo=123: Input should be a valid boolean"),
        (
            {"stop": ["a"] * 17},
            "stop=['a', 'a', 'a', 'a', ...]: List should have at most 16 items after validation, not 17",
        ),
        ({"n": None, "best_of": 0}, "best_of=0: Input should be greater than or equal to 1"),
    ],
)
def test_the_message_says_field_value_and_rule(fields: dict[str, Any], message: str) -> None:
    error = refusal(CompletionRequest, COMPLETION | fields)
    assert error.message == message
    assert error.envelope()["error"]["param"] == message.partition("=")[0]


@pytest.mark.parametrize("status", [400, 422])
def test_only_schema_failures_have_fastapis_status(status: int) -> None:
    failures: list[dict[str, Any]] = [{"temperature": 3}, {"n": "2"}, {"prompt": None}]
    for fields in failures:
        error = refusal(CompletionRequest, COMPLETION | fields, validation_status=status)
        assert (type(error), error.status) == (ValidationFailed, status)
    others: list[dict[str, Any]] = [{"n": 2, "best_of": 1}, {"max_tokens": 0}, {"store": True}]
    for fields in others:
        error = refusal(CompletionRequest, COMPLETION | fields, validation_status=status)
        assert (error.status, error.envelope()["detail"]) == (400, error.message)
    with pytest.raises(InvalidJSON) as caught:
        parse(CompletionRequest, b"{", Settings(validation_status=status))
    assert caught.value.status == 400


def test_unknown_fields_are_reported_with_their_place() -> None:
    message = {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "x", "a": 1},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA==", "b": 1}},
        ],
        "tool_calls": [{"id": "1", "c": 1, "function": {"name": "f", "arguments": "{}", "d": 1}}],
        "e": 1,
    }
    body = CHAT | {
        "f": 1,
        "stream": True,
        "stream_options": {"g": 1},
        "messages": [USER, message],
        "tools": [WEATHER | {"h": 1}],
        "tool_choice": {"type": "function", "function": {"name": "get_weather", "i": 1}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "j": 1}},
    }
    _, unknown = read(ChatCompletionRequest, body)
    assert sorted(unknown) == [
        "f",
        "messages[1].content[0].a",
        "messages[1].content[1].image_url.b",
        "messages[1].e",
        "messages[1].tool_calls[0].c",
        "messages[1].tool_calls[0].function.d",
        "response_format.json_schema.j",
        "stream_options.g",
        "tool_choice.function.i",
        "tools[0].h",
    ]


def test_names_of_our_own_methods_are_unknown_fields() -> None:
    names = {"model_extra": 1, "parts": 2, "refused": 3, "__class__": 4, "model_fields": 5}
    _, unknown = read(CompletionRequest, COMPLETION | names)
    assert sorted(unknown) == ["__class__", "model_extra", "model_fields", "parts", "refused"]


def test_the_default_model_is_for_requests_without_a_model() -> None:
    for named in ({}, {"model": None}):
        assert read(CompletionRequest, {"prompt": "x"} | named, default_model="org/demo")[0].model == "org/demo"
        assert refusal(CompletionRequest, {"prompt": "x"} | named).param == "model"
    assert read(CompletionRequest, COMPLETION | {"model": "other"}, default_model="org/demo")[0].model == "other"
    assert refusal(CompletionRequest, COMPLETION | {"model": ""}, default_model="org/demo").param == "model"


MANY = 300_000


@pytest.mark.parametrize(
    ("model", "fields", "param"),
    [
        (ChatCompletionRequest, {"messages": [1] * MANY}, "messages"),
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": [1] * 4096}]}, "messages[0].content[0]"),
        (
            ChatCompletionRequest,
            {"messages": [{"role": "assistant", "tool_calls": [1] * MANY}]},
            "messages[0].tool_calls[0]",
        ),
        (ChatCompletionRequest, {"tools": [1] * MANY}, "tools"),
        (CompletionRequest, {"logit_bias": {f"x{number}": 1 for number in range(MAX_NAMES - 9)}}, "logit_bias"),
        (CompletionRequest, {"structured_outputs": {"choice": [1] * MANY}}, "structured_outputs.choice[0]"),
        (DetokenizeRequest, {"tokens": ["x"] * MANY}, "tokens[0]"),
    ],
)
def test_only_the_first_bad_item_of_a_list_is_checked(model: type[Body], fields: dict[str, Any], param: str) -> None:
    # Checking all items kept the event loop busy for ten seconds.
    error = refusal(model, (CHAT if model is ChatCompletionRequest else COMPLETION) | fields)
    assert (error.param, len(error.detail)) == (param, 1)


def test_a_thousand_bad_values_make_a_short_answer() -> None:
    error = refusal(CompletionRequest, COMPLETION | {"logit_bias": {f"x{number}": 1 for number in range(1000)}})
    assert (error.param, len(error.detail)) == ("logit_bias.x0", MAX_DETAILS)


def test_the_rule_stands_before_a_long_value() -> None:
    """129 tools were shown before the limit."""
    tool = {"type": "function", "function": {"name": "f", "description": "a" * 80}}
    message = refusal(ChatCompletionRequest, CHAT | {"tool_choice": [tool] * 9}).message
    assert message.startswith("tool_choice: Input should be ")
    assert ", not [{" in message and len(message) < 300
