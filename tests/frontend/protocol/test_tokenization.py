"""The bodies of /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.errors import InvalidRequest, ValidationFailed
from frontend.protocol.tokenization import DetokenizeRequest, TokenizeRequest
from model_repository.contract.rules import MAX_TOOLS
from tests.frontend.bodies import TIME, USER, read, refusal

MODEL = {"model": "m"}


@pytest.mark.parametrize(
    ("fields", "param", "kind", "status"),
    [
        ({}, "prompt", InvalidRequest, 400),
        ({"prompt": "x", "messages": [USER]}, "prompt", InvalidRequest, 400),
        ({"prompt": "x", "tools": [TIME]}, "tools", InvalidRequest, 400),
        ({"messages": [USER], "continue_final_message": True}, "continue_final_message", InvalidRequest, 400),
        ({"messages": [USER], "add_special_tokens": True}, "add_special_tokens", InvalidRequest, 400),
        ({"prompt": [1]}, "prompt", ValidationFailed, 422),
        ({"messages": []}, "messages", ValidationFailed, 422),
        ({"messages": [USER], "tools": [TIME] * (MAX_TOOLS + 1)}, "tools", ValidationFailed, 422),
    ],
)
def test_a_bad_body_is_refused_by_place(fields: dict[str, Any], param: str, kind: type[Exception], status: int) -> None:
    error = refusal(TokenizeRequest, MODEL | fields, validation_status=422)
    assert (type(error), error.status, error.param) == (kind, status, param)


def test_unknown_fields_are_reported() -> None:
    _, unknown = read(TokenizeRequest, MODEL | {"messages": [USER | {"a": 1}], "tools": [TIME | {"b": 1}], "c": 1})
    assert sorted(unknown) == ["c", "messages[0].a", "tools[0].b"]


def test_token_ids_can_be_detokenized() -> None:
    assert read(DetokenizeRequest, MODEL | {"tokens": [0, 2**31 - 1]})[0].tokens == [0, 2**31 - 1]
    assert read(DetokenizeRequest, MODEL | {"tokens": []})[0].tokens == []


@pytest.mark.parametrize(
    ("tokens", "param"),
    [
        ([1, -1], "tokens[1]"),
        ([2**31], "tokens[0]"),
        ([True], "tokens[0]"),
        (["1"], "tokens[0]"),
    ],
)
def test_another_value_is_no_list_of_token_ids(tokens: Any, param: str) -> None:
    error = refusal(DetokenizeRequest, MODEL | {"tokens": tokens})
    assert (type(error), error.param) == (ValidationFailed, param)
