"""The bodies of Anthropic's Messages API: rules, and parts that are listed."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.protocol.messages import MessagesRequest
from tests.frontend.bodies import MESSAGE, read, refusal

TEXT = {"type": "text", "text": "a"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
DATA = {"type": "base64", "media_type": "image/png", "data": "eA=="}


def user(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": list(blocks)}]}


def result(*blocks: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "t", "content": list(blocks)}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        (
            {"messages": [{"role": "system", "content": [{"type": "image", "source": DATA}]}]},
            "messages[0].content[0].type",
        ),
        (user({"type": "text"}), "messages[0].content[0].text"),
        (user(TEXT | {"input": {}}), "messages[0].content[0].input"),
        (user({"text": "a"}), "messages[0].content[0].type"),
        (user({"type": "thinking", "thinking": "a"}), "messages[0].content[0].type"),
        (user({"type": "image", "source": {"type": "file", "file_id": "f"}}), "messages[0].content[0].source.type"),
        (user({"type": "image", "source": {"type": "url"}}), "messages[0].content[0].source.url"),
        (user({"type": "image", "source": {"type": "text", "data": "a"}}), "messages[0].content[0].source.type"),
        (user({"type": "document", "source": {"type": "file", "file_id": "f"}}), "messages[0].content[0].source.type"),
        (
            user({"type": "document", "source": {"type": "content", "content": [result()]}}),
            "messages[0].content[0].source.content[0].type",
        ),
        (user(TEXT, {"type": "container_upload", "file_id": "f"}), "messages[0].content[1].type"),
        (user(result({"type": "search_result", "content": [TEXT]})), "messages[0].content[0].content[0].type"),
        (user({"type": "unheard_of"}), "messages[0].content[0].type"),
        (
            user(result({"type": "tool_use", "id": "t", "name": "f", "input": {}})),
            "messages[0].content[0].content[0].type",
        ),
        (assistant(result()), "messages[0].content[0].type"),
        (assistant({"type": "tool_use", "id": "t", "name": "f", "input": "{}"}), "messages[0].content[0].input"),
        ({"system": [{"type": "image", "source": DATA}]}, "system[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "any", "name": "f"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "disabled", "budget_tokens": 9}}, "thinking.budget_tokens"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"service_tier": "flex"}, "service_tier"),
    ],
)
def test_a_broken_rule_is_refused_with_its_place(fields: dict[str, Any], place: str) -> None:
    error = refusal(MessagesRequest, {name: value for name, value in (MESSAGE | fields).items() if value is not None})
    assert (error.status, error.param) == (400, place)
    assert error.message.startswith(place)


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        (assistant({"type": "redacted_thinking", "data": "x"}, TEXT), ["messages[0].content[0]"]),
        (
            assistant({"type": "web_search_tool_result", "tool_use_id": "t", "content": {"type": "x"}}, TEXT),
            ["messages[0].content[0]"],
        ),
        (user(result(TEXT, {"type": "tool_reference", "tool_name": "f"})), ["messages[0].content[0].content[1]"]),
        ({"tools": [{"type": "bash_20250124", "name": "bash", "x": 1}, TOOL]}, ["tools[0]"]),
        ({"tools": [TOOL, {"type": "mcp_toolset", "mcp_server_name": "x", "description": {}}]}, ["tools[1]"]),
        ({"tools": [TOOL | {"type": "custom", "defer_loading": True}]}, ["tools[0].defer_loading"]),
        ({"container": "c", "metadata": {"user_id": "u", "x": 1}}, ["container", "metadata.x"]),
        (user({"type": "image", "source": DATA}) | {"service_tier": "auto", "thinking": {"type": "adaptive"}}, []),
        (assistant({"type": "thinking", "thinking": "a", "signature": "of another server"}, TEXT), []),
    ],
)
def test_unknown_parts_are_listed(fields: dict[str, Any], places: list[str]) -> None:
    assert read(MessagesRequest, MESSAGE | fields)[1] == places


def test_a_type_that_nobody_knows_is_refused_with_those_that_are() -> None:
    message = refusal(MessagesRequest, MESSAGE | user({"type": "search_result"})).message
    assert message.startswith("messages[0].content[0].type='search_result': not supported here, expected one of ")
    assert "document, fallback, image" in message and "server_tool_use" in message
