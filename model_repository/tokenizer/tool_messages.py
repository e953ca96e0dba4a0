"""Conversations with tools, rewritten as a model's chat template takes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from model_repository.tool_formats import PLAIN, ToolFormat


class Arguments(dict[str, Any]):
    """Arguments of a call for a template: an object, and JSON text where the template writes or joins them as text."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, text: str) -> str:
        return str(self) + text

    def __radd__(self, text: str) -> str:
        return text + str(self)


class RawArguments(Arguments):
    """Arguments that are not a JSON object, for example cut ones: `tojson` and `str` give the model's text.

    It is a dictionary for templates that iterate over arguments: the text has the empty name.
    """

    def __str__(self) -> str:
        return str(self[""])


def messages_with_history_ids(messages: Sequence[Mapping[str, Any]], history_id: str) -> list[dict[str, Any]]:
    """Give the calls of a conversation the ids of a format, in their order, and the results those of their calls."""
    renamed: list[dict[str, Any]] = []
    new_ids: dict[str, str] = {}
    num_calls = 0
    for message in messages:
        changes: dict[str, Any] = {}
        if message.get("tool_call_id") is not None:
            changes["tool_call_id"] = new_ids.get(str(message["tool_call_id"]), message["tool_call_id"])
        if "tool_calls" in message:
            changes["tool_calls"] = calls = []
            for call in message["tool_calls"]:
                new_id = history_id.format(name=call["function"]["name"], number=num_calls)
                new_ids[str(call.get("id"))] = new_id
                calls.append({**call, "id": new_id})
                num_calls += 1
        renamed.append({**message, **changes})
    return renamed


def messages_with_single_calls(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rewrite a conversation for gpt-oss's template: it writes one call of a message, and refuses two texts before it.

    Each call becomes a message, followed by its results. A content before calls joins the thinking.
    """
    groups: list[list[dict[str, Any]]] = []  # of messages that stay together
    group_of_call: dict[str, list[dict[str, Any]]] = {}
    for message in messages:
        if message.get("tool_calls"):
            first = {**message}
            if message["content"] and message.get("thinking"):
                first |= {"thinking": f"{message['thinking']}\n\n{message['content']}", "content": ""}
            group_of_call = {}
            for call in message["tool_calls"]:
                groups.append([{**first, "tool_calls": [call]}])
                group_of_call.setdefault(str(call.get("id")), groups[-1])
                first = {"role": message["role"], "content": ""}
        elif message["role"] == "tool" and groups:
            group_of_call.get(str(message.get("tool_call_id")), groups[-1]).append({**message})
        else:
            groups.append([{**message}])
    return [message for group in groups for message in group]


def tool_prompt(tools: Iterable[Mapping[str, Any]], tool_format: ToolFormat) -> str:
    """Describe tools, OpenAI's objects, in words: for a model whose template has no tools."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = tool_format.calls_text([("NAME", '{"KEY": VALUE}')])
    several = (
        "For several calls write several such blocks. Results come back in <tool_response> blocks. "
        if tool_format is PLAIN
        else ""
    )
    return (
        f"You can call these tools. Each line describes one, its parameters as a JSON schema:\n{listed}\n\n"
        f"To call a tool, answer with its name and its arguments in exactly this form:\n{example}\n"
        f"{several}When no tool is needed, answer in plain text."
    )


def messages_with_tool_prompt(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    tool_format: ToolFormat,
) -> list[dict[str, Any]]:
    """Describe tools in the system message."""
    described = [dict(message) for message in messages]
    if tools:
        text = tool_prompt(tools, tool_format)
        if not described or described[0]["role"] not in ("system", "developer"):
            described.insert(0, {"role": "system", "content": ""})
        described[0]["content"] = "\n\n".join(filter(None, [described[0]["content"], text]))
    return described


def messages_with_calls_as_text(messages: Sequence[Mapping[str, Any]], tool_format: ToolFormat) -> list[dict[str, Any]]:
    """Write calls into the contents of the assistant, for a template without calls."""
    written = []
    for message in messages:
        rest = {key: value for key, value in message.items() if key != "tool_calls"}
        if message.get("tool_calls"):
            functions = [call["function"] for call in message["tool_calls"]]
            calls = [(function["name"], _json_text(function["arguments"])) for function in functions]
            rest["content"] = "\n".join(filter(None, [message.get("content"), tool_format.calls_text(calls)]))
        written.append(rest)
    return written


def messages_with_plain_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Rewrite a conversation with tools for a template without tools.

    A prompt describes the tools, and calls become text of the assistant. Consecutive results and the next user text
    become one message of the user, since such templates often require that user and assistant alternate.
    """
    plain: list[dict[str, Any]] = []
    is_after_result = False
    for message in messages_with_calls_as_text(messages, PLAIN):
        content, is_result = message.get("content") or "", message["role"] == "tool"
        if is_result:
            content = f"<tool_response>\n{content}\n</tool_response>"
        if is_after_result and message["role"] in ("tool", "user"):
            plain[-1]["content"] += ("\n" if is_result else "\n\n") + content
        elif is_result:
            plain.append({"role": "user", "content": content})
        else:
            plain.append(message)
        is_after_result = is_result
    return messages_with_tool_prompt(plain, tools, PLAIN)


def _json_text(arguments: Any) -> str:
    """Return arguments as JSON text: OpenAI's messages have them as text, a template's as an object."""
    return str(arguments) if isinstance(arguments, str | Arguments) else json.dumps(arguments, ensure_ascii=False)
