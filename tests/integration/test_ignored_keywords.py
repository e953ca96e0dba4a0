"""Keywords of schemas without effect: the tokenizer stage finds them, after a stream's head may have left."""

from __future__ import annotations

import json
import secrets
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.api import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Api
from tests.integration.replicas import frontend_of
from tests.integration.stack import Stack
from tests.waiting import DEADLINE_S

EAGER = "--stream-keepalive-s=0.001"  # the head leaves before the tokenizer stage has read the schema


@pytest.fixture(scope="module")
def eager(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with frontend_of([stack], tmp_path_factory.mktemp("eager"), EAGER) as frontend:
        yield Api(frontend.url)


@pytest.fixture(scope="module")
def strict(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with frontend_of([stack], tmp_path_factory.mktemp("strict"), EAGER, "--strict-extra") as frontend:
        yield Api(frontend.url)


def chat(schema: Any) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    return {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "tools": [tool]}


def completion(schema: Any) -> dict[str, Any]:
    return {"model": "demo", "prompt": "hi", "max_tokens": 9, "structured_outputs": {"json": schema}}


def message(schema: Any) -> dict[str, Any]:
    tools = [{"name": "g", "input_schema": {"type": "object"}}, {"name": "f", "input_schema": schema}]
    return {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "tools": tools}


def response(schema: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "name": "a", "schema": schema}
    return {"model": "demo", "input": "hi", "max_output_tokens": 9, "text": {"format": form}}


def new_schema() -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"not": {}}}, "description": secrets.token_hex()}


def streamed(api: Api, path: str, body: dict[str, Any]) -> tuple[str | None, str]:
    """Return the header of a stream, and its text."""
    payload = json.dumps(body | {"stream": True}).encode()
    asked = urllib.request.Request(api.url + path, data=payload, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=DEADLINE_S) as answer:
        return answer.headers["x-ignored-params"], answer.read().decode()


@pytest.mark.parametrize(
    ("path", "body_of", "place"),
    [
        (CHAT, chat, "tools[0].function.parameters"),
        (COMPLETIONS, completion, "structured_outputs.json"),
        (MESSAGES, message, "tools[1].input_schema"),
        (RESPONSES, response, "text.format.schema"),
    ],
)
def test_they_are_in_the_header_or_in_a_comment_or_refused(
    api: Api, eager: Api, strict: Api, path: str, body_of: Any, place: str
) -> None:
    place += ".properties.a.not"
    whole = api.post(path, body_of(new_schema()))
    assert (whole.status, whole.headers["x-ignored-params"]) == (200, place)
    header, text = streamed(api, path, body_of(new_schema()))
    assert header == place and "x-ignored-params" not in text
    header, text = streamed(eager, path, body_of(new_schema()))
    before, comment, behind = text.partition(f": x-ignored-params: {place}\n\n")
    assert header is None and comment and "data:" not in before and "data:" in behind
    refused = strict.post(path, body_of(new_schema()))
    assert (refused.status, refused.error["message"].partition(": ")[0]) == (400, place)
    header, text = streamed(strict, path, body_of(new_schema()))
    assert header is None and f"{place}: unknown, or without effect" in text
    if path != MESSAGES:  # Anthropic's errors have no code
        assert refused.error["code"] == "unknown_parameter" and '"code":"unknown_parameter"' in text
