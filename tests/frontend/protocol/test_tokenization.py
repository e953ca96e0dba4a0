"""The bodies of /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.errors import InvalidRequest, ValidationFailed
from frontend.protocol.tokenization import DetokenizeRequest, TokenizeRequest
from tests.frontend.bodies import TIME, USER, read, refusal

MODEL = {"model": "m"}


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "x"},
        {"prompt": ""},
        {"prompt": "x", "add_special_tokens": False, "return_token_strs": True},
        {"messages": [USER]},
        {"messages": "hi", "add_special_tokens": False},
        {"messages": [USER], "tools": [TIME], "chat_template_kwargs": {"a": 1}},
        {"messages": [USER], "add_generation_prompt": False, "continue_final_message": True},
    ],
)
def test_a_prompt_or_messages_can_be_tokenized(fields: dict[str, Any]) -> None:
    assert read(TokenizeRequest, MODEL | fields)[1] == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None, "messages": None}, "prompt"),
        ({"prompt": "x", "messages": [USER]}, "prompt"),
        ({"messages": [USER], "continue_final_message": True}, "continue_final_message"),
    ],
)
def test_exactly_one_of_both_is_wanted(fields: dict[str, Any], param: str) -> None:
    error = refusal(TokenizeRequest, MODEL | fields, validation_status=422)
    assert (type(error), error.status, error.param) == (InvalidRequest, 400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": 5}, "prompt"),
        ({"prompt": [1]}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
        ({"prompt": "x", "add_special_tokens": 1}, "add_special_tokens"),
        ({"messages": [USER], "tools": [{"type": "function"}]}, "tools[0].function"),
        ({"messages": [USER], "tools": [TIME] * 129}, "tools"),
    ],
)
def test_a_bad_value_is_refused_by_place(fields: dict[str, Any], param: str) -> None:
    error = refusal(TokenizeRequest, MODEL | fields, validation_status=422)
    assert (type(error), error.status, error.param) == (ValidationFailed, 422, param)


def test_names_that_nobody_knows_are_reported() -> None:
    _, unknown = read(TokenizeRequest, MODEL | {"messages": [USER | {"a": 1}], "tools": [TIME | {"b": 1}], "c": 1})
    assert sorted(unknown) == ["c", "messages[0].a", "tools[0].b"]


def test_token_ids_can_be_detokenized() -> None:
    assert read(DetokenizeRequest, MODEL | {"tokens": [0, 2**31 - 1]})[0].tokens == [0, 2**31 - 1]
    assert read(DetokenizeRequest, MODEL | {"tokens": []})[0].tokens == []


@pytest.mark.parametrize(
    ("tokens", "param"),
    [
        (None, "tokens"),
        ("x", "tokens"),
        ([1, -1], "tokens[1]"),
        ([2**31], "tokens[0]"),
        ([True], "tokens[0]"),
        ([1.0], "tokens[0]"),
        (["1"], "tokens[0]"),
        ([[1]], "tokens[0]"),
    ],
)
def test_what_are_no_token_ids_is_refused(tokens: Any, param: str) -> None:
    error = refusal(DetokenizeRequest, MODEL | {"tokens": tokens})
    assert (type(error), error.param) == (ValidationFailed, param)


def test_the_model_is_required() -> None:
    assert refusal(TokenizeRequest, {"prompt": "x"}).param == "model"
    assert refusal(DetokenizeRequest, {"tokens": [1]}).param == "model"
