"""Request bodies for several tests, and functions that parse them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from frontend.errors import APIError
from frontend.protocol.body import Body
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.completion import CompletionRequest
from frontend.protocol.reading import parse
from frontend.settings import Settings
from tests.fakes import DEMO

USER = {"role": "user", "content": "hi"}
CHAT: dict[str, Any] = {"model": DEMO.id, "messages": [USER]}
COMPLETION: dict[str, Any] = {"model": DEMO.id, "prompt": "hi"}
MESSAGE: dict[str, Any] = {"model": DEMO.id, "max_tokens": 9, "messages": [USER]}
EMBEDDING: dict[str, Any] = {"model": DEMO.id, "input": "hi"}
RERANKING: dict[str, Any] = {"model": DEMO.id, "query": "hi", "documents": ["a"]}
SCORING: dict[str, Any] = {"model": DEMO.id, "text_1": "hi", "text_2": "a"}
CLASSIFICATION = EMBEDDING
RESPONSE: dict[str, Any] = {"model": DEMO.id, "input": "hi"}
ENDPOINTS: list[Any] = [
    pytest.param(ChatCompletionRequest, CHAT, id="chat"),
    pytest.param(CompletionRequest, COMPLETION, id="completion"),
]
PATHS: list[Any] = [
    pytest.param("/v1/chat/completions", CHAT, id="chat"),
    pytest.param("/v1/completions", COMPLETION, id="completion"),
]

WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
TIME = {"type": "function", "function": {"name": "get_time"}}


def read[Request: Body](model: type[Request], body: Mapping[str, Any], **settings: Any) -> tuple[Request, list[str]]:
    """Return the request in a body, and the places of ignored fields."""
    return parse(model, json.dumps(body).encode(), Settings(**settings))


def refusal(model: type[Body], body: Mapping[str, Any], **settings: Any) -> APIError:
    """Return the error with which a body is refused."""
    with pytest.raises(APIError) as caught:
        read(model, body, **settings)
    return caught.value


def chat(**fields: Any) -> ChatCompletionRequest:
    """Return a chat request with these fields."""
    return read(ChatCompletionRequest, CHAT | fields)[0]


def completion(**fields: Any) -> CompletionRequest:
    """Return a completions request with these fields."""
    return read(CompletionRequest, COMPLETION | fields)[0]
