"""The bodies of OpenAI's Responses API: rules, and parts that are listed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.protocol.responses import ResponsesRequest, opened_thinking, sealed_thinking
from tests.frontend.bodies import RESPONSE, read, refusal

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CUSTOM = {"type": "custom", "name": "c"}
SPACE = {"type": "namespace", "name": "n", "tools": [TOOL]}
USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [USER, fields]}


def part(**fields: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [fields]}]}


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input"),
        (item(content="a"), "input[1].type"),
        (item(role="tool", content="a"), "input[1].role"),
        (item(type="message", content="a"), "input[1].role"),
        (item(role="user"), "input[1].content"),
        (item(role="user", content="a", output="b"), "input[1].output"),
        (item(type="function_call", name="f", arguments="{}"), "input[1].call_id"),
        (item(type="function_call", call_id="1", name="f", arguments={}), "input[1].arguments"),
        (item(type="function_call", call_id="1", name="a b", arguments="{}"), "input[1].name"),
        (item(type="function_call_output", call_id="1"), "input[1].output"),
        (item(type="custom_tool_call", call_id="1", name="c"), "input[1].input"),
        (item(type="reasoning", summary=[{"type": "output_text", "text": "a"}]), "input[1].summary[0].type"),
        (part(type="input_text"), "input[0].content[0].text"),
        (part(type="input_text", text="a", image_url="b"), "input[0].content[0].image_url"),
        (part(type="input_image", file_id="f"), "input[0].content[0].image_url"),
        (part(type="input_file", file_id="f"), "input[0].content[0].file_id"),
        (part(type="input_file", filename="f"), "input[0].content[0].file_data"),
        (part(type="input_file", file_data="a", file_url="b"), "input[0].content[0].file_data"),
        (
            item(type="function_call_output", call_id="c", output=[{"type": "input_file", "file_id": "f"}]),
            "input[1].output[0].file_id",
        ),
        (item(type="unheard_of"), "input[1].type"),
        (part(type="reasoning_text", text="a"), "input[0].content[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [CUSTOM | {"parameters": {}}]}, "tools[0].parameters"),
        ({"tools": [CUSTOM | {"format": {"type": "grammar", "syntax": "lark"}}]}, "tools[0].format.definition"),
        ({"tools": [CUSTOM | {"format": {"type": "text", "syntax": "lark"}}]}, "tools[0].format.syntax"),
        ({"tools": [SPACE | {"tools": [SPACE]}]}, "tools[0].tools[0].type"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search_preview"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format.schema"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stream_options": {}}, "stream_options"),
        ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "conversation"),
        ({"conversation": {}}, "conversation.id"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"truncation": "middle"}, "truncation"),
    ],
)
def test_a_broken_rule_is_refused_by_place(fields: dict[str, Any], place: str) -> None:
    error = refusal(ResponsesRequest, RESPONSE | fields)
    assert (error.status, error.param) == (400, place)
    assert error.message.startswith(place)


@pytest.mark.parametrize(
    ("fields", "places"),
    [
        ({"store": False, "text": {"verbosity": "medium"}, "reasoning": {}}, []),
        ({"text": {"verbosity": "low"}}, ["text.verbosity"]),
        ({"include": ["reasoning.encrypted_content", "web_search_call.results"]}, ["include[1]"]),
        ({"tools": [TOOL, {"type": "web_search", "filters": 5}]}, ["tools[1]"]),
        (item(type="web_search_call", status=5), ["input[1]"]),
        (item(type="reasoning", summary=[], encrypted_content="gAAAA"), ["input[1].encrypted_content"]),
        (item(type="reasoning", summary=[], encrypted_content=sealed_thinking("a")), []),
        (item(role="assistant", content="a", id="msg_1", status="completed", phase="final_answer"), []),
        (part(type="input_image", image_url="data:", detail="low"), ["input[0].content[0].detail"]),
        ({"client_metadata": {"a": 1}}, ["client_metadata"]),
    ],
)
def test_parts_without_effect_are_listed(fields: dict[str, Any], places: list[str]) -> None:
    assert read(ResponsesRequest, RESPONSE | fields)[1] == places


@given(st.text())
def test_sealed_thinking_comes_back(text: str) -> None:
    assert opened_thinking(sealed_thinking(text)) == text


@pytest.mark.parametrize("sealed", ["", "gAAAAAB", "conch:?", "conch:/w==", "a conch:YQ=="])
def test_what_another_server_sealed_is_not_opened(sealed: str) -> None:
    assert opened_thinking(sealed) is None


def test_labels_are_logged() -> None:
    labels = {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "metadata": {"a": "b"}}
    assert read(ResponsesRequest, RESPONSE | labels)[0].bookkeeping() == labels
