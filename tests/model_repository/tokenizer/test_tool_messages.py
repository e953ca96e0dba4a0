"""Conversations with tools for templates of several kinds."""

from __future__ import annotations

from typing import Any

from model_repository.tokenizer.tool_messages import messages_with_plain_tools, messages_with_single_calls
from model_repository.tool_formats import PLAIN

NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_calls_become_messages_of_their_own_with_their_results_behind_them() -> None:
    """gpt-oss's template writes the first call of a message only."""
    user = {"role": "user", "content": "Go"}
    calls = [{"id": letter, "function": {"name": letter, "arguments": {}}} for letter in "ab"]
    results = [{"role": "tool", "tool_call_id": letter, "content": letter} for letter in "bac"]
    texts = {"thinking": "Hm.", "content": "I call."}
    messages: list[dict[str, Any]] = [user, {"role": "assistant", **texts, "tool_calls": calls}, *results, user]
    assert messages_with_single_calls(messages) == [
        user,
        {"role": "assistant", "thinking": "Hm.\n\nI call.", "content": "", "tool_calls": [calls[0]]},
        results[1],
        {"role": "assistant", "content": "", "tool_calls": [calls[1]]},
        results[0],
        results[2],  # of an unknown call
        user,
    ]


def test_calls_and_results_become_text_of_alternating_roles() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Weather in Oslo?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [call("get_weather", '{"city":"Oslo"}'), call("now", {})],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
        {"role": "user", "content": "And in Rome?"},
        {"role": "assistant", "content": None, "tool_calls": [call("get_weather", {"city": "Röm"})]},
        {"role": "tool", "content": "sun"},
        {"role": "assistant", "content": "Sunny."},
    ]
    rewritten = messages_with_plain_tools(messages, [])
    assert rewritten == [
        {"role": "user", "content": "Weather in Oslo?"},
        {
            "role": "assistant",
            "content": "Let me see.\n" + PLAIN.calls_text([("get_weather", '{"city":"Oslo"}'), ("now", "{}")]),
        },
        {
            "role": "user",
            "content": "<tool_response>\nrain\n</tool_response>\n<tool_response>\nnoon\n</tool_response>"
            "\n\nAnd in Rome?",
        },
        {"role": "assistant", "content": PLAIN.calls_text([("get_weather", '{"city": "Röm"}')])},
        {"role": "user", "content": "<tool_response>\nsun\n</tool_response>"},
        {"role": "assistant", "content": "Sunny."},
    ]
