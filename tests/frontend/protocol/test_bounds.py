"""Bounds on bodies that are settings: what is over them is refused before it costs anything."""

from __future__ import annotations

import json

import pytest

from frontend.errors import InvalidJSON
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import CompletionRequest
from frontend.protocol.reading import parse
from frontend.protocol.tokenization import TokenizeRequest
from frontend.settings import Settings
from tests.frontend.bodies import CHAT, read, refusal

PART = {"type": "text", "text": ""}


def messages(*num_parts: int) -> list[object]:
    return [{"role": "user", "content": [PART] * count} for count in num_parts]


@pytest.mark.parametrize("model", [ChatCompletionRequest, TokenizeRequest])
def test_content_parts_are_counted_over_all_messages(model: type[ChatCompletionRequest]) -> None:
    body = {"model": CHAT["model"]}
    read(model, body | {"messages": messages(3, 2)}, max_content_parts=5)
    error = refusal(model, body | {"messages": messages(3, 3)}, max_content_parts=5)
    assert error.param == "messages"
    assert "6 content parts are more than 5" in error.message


def test_the_depth_of_a_body_is_a_setting() -> None:
    body = {"model": "a", "prompt": "b", "metadata": {"a": [[[[[[1]]]]]]}}
    parse(CompletionRequest, json.dumps(body).encode(), Settings())
    with pytest.raises(InvalidJSON, match="10 levels of nesting: at most 8 are read"):
        parse(CompletionRequest, json.dumps(body | {"foo": [body]}).encode(), Settings(max_json_depth=8))


def test_lists_and_objects_are_counted() -> None:
    body = {"model": "a", "prompt": "b"}
    parse(CompletionRequest, json.dumps(body | {"foo": [[]] * 19_990}).encode(), Settings())
    with pytest.raises(InvalidJSON, match="has 20002 lists and objects: at most 20000 are read"):
        parse(CompletionRequest, json.dumps(body | {"foo": [[]] * 20_000}).encode(), Settings())
