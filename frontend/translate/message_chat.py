"""Requests of Anthropic's Messages API to chats."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.messages import CountTokensRequest, InputBlock, InputMessage, MessagesRequest
from frontend.protocol.prompt_cache import seconds
from frontend.translate.placed_chat import Placed, PlacedMessages, chat_from
from frontend.translate.places import Places
from frontend.translate.requests import thinking_switches
from frontend.triton.models import ModelName

# Claude Code begins its system prompt with this line. It changes with each request, and no prompt would begin like an
# earlier one. Source: https://github.com/anthropics/claude-code/issues/68900
_BILLING_HEADER = "x-anthropic-billing-header:"


# The places of a chat's fields.
_PLACES = {
    "n": "messages",
    "stop": "stop_sequences",
    "prompt_cache_options": "cache_control",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "enable_thinking": "thinking",
    "thinking_budget_tokens": "thinking.budget_tokens",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
}


def messages_to_chat(
    body: CountTokensRequest, name: ModelName, has_billing_header: bool, places: Places
) -> ChatCompletionRequest:
    """Return the chat that a request means.

    Args:
        has_billing_header: keep Claude Code's line in the system prompt.
        places: gets those of the chat's parts.

    Raises:
        InvalidRequest: a rule of chats is broken.
    """
    fields: dict[str, Any] = {"model": body.model}
    if isinstance(body, MessagesRequest):
        names = ("max_tokens", "temperature", "top_p", "top_k", "stream")
        fields |= {each: getattr(body, each) for each in names}
        fields |= {"stop": body.stop_sequences, "include_stop_str_in_output": False}
        lifetimes = [each.lifetime for each in body.cache_controls()]
        if lifetimes:
            fields["prompt_cache_options"] = {"ttl": max(lifetimes, key=seconds)}
    last = body.messages[-1]
    types = {block.type for block in last.content}
    if last.role == "assistant" and "text" in types and "tool_use" not in types:
        fields |= {"add_generation_prompt": False, "continue_final_message": True}
    for ours, theirs in _PLACES.items():
        places[ours] = theirs
    places["continue_final_message"] = f"messages[{len(body.messages) - 1}]"
    fields["messages"] = messages = PlacedMessages(places)
    _write_system(body, has_billing_header, messages)
    for index, message in enumerate(body.messages):
        _write_message(message, f"messages[{index}]", messages)
    fields |= _tool_fields(body, places) | _thinking_fields(body, name) | _format_fields(body)
    return chat_from(fields, places)


def _write_system(body: CountTokensRequest, has_billing_header: bool, messages: PlacedMessages) -> None:
    parts: list[Placed] = []
    for index, block in enumerate(body.system or ()):
        text = block.text
        if text.startswith(_BILLING_HEADER) and not has_billing_header:
            text = text.partition("\n")[2]
            if not text:
                continue
        parts.append(({"type": "text", "text": text}, f"system[{index}].text"))
    if parts:
        messages.write("system", "system", parts)


def _write_message(message: InputMessage, place: str, messages: PlacedMessages) -> None:
    """Write a message: each result of a tool is one of its own."""
    blocks = [(f"{place}.content[{number}]", block) for number, block in enumerate(message.content)]
    if message.role == "assistant":
        _write_assistant(blocks, place, messages)
        return
    parts: list[Placed] = []
    has_results = False
    for where, block in blocks:
        if block.type != "tool_result":
            parts += _parts([(where, block)])
            continue
        if parts:
            messages.write(message.role, place, parts)
        has_results, parts = True, []
        _write_result(block, where, messages)
    if parts or not has_results:
        messages.write(message.role, place, parts)


def _write_assistant(blocks: list[tuple[str, InputBlock]], place: str, messages: PlacedMessages) -> None:
    thoughts = [block.thinking for _, block in blocks if block.thinking is not None]
    calls: list[Placed] = []
    for where, block in blocks:
        if block.type == "tool_use":
            function = {"name": block.name, "arguments": json.dumps(block.input, ensure_ascii=False)}
            calls.append(({"id": block.id, "function": function}, f"{where}.name"))
    messages.write("assistant", place, _parts(blocks), calls, reasoning_content="\n\n".join(thoughts) or None)


def _write_result(block: InputBlock, place: str, messages: PlacedMessages) -> None:
    parts = _parts((f"{place}.content[{number}]", inner) for number, inner in enumerate(block.content or ()))
    if block.is_error:  # templates know no such field
        parts.insert(0, ({"type": "text", "text": "Error:"}, f"{place}.is_error"))
    messages.write("tool", place, parts, tool_call_id=block.tool_use_id)


def _parts(blocks: Iterable[tuple[str, InputBlock]]) -> list[Placed]:
    """Return the texts, images and documents of blocks, which come with their places."""
    parts: list[Placed] = []
    for place, block in blocks:
        source = block.source
        is_file = source is not None and source.type in ("base64", "url")
        for name in ("context",) if is_file else ("title", "context"):
            if (text := getattr(block, name)) is not None:
                parts.append(({"type": "text", "text": text}, f"{place}.{name}"))
        if block.text is not None:
            parts.append(({"type": "text", "text": block.text}, f"{place}.text"))
        elif source is not None and source.type == "text":
            parts.append(({"type": "text", "text": source.data}, f"{place}.source.data"))
        elif source is not None and source.content is not None:
            parts += _parts((f"{place}.source.content[{number}]", each) for number, each in enumerate(source.content))
        elif source is not None:
            is_url = source.type == "url"
            url = source.url if is_url else f"data:{source.media_type};base64,{source.data}"
            place = f"{place}.source.{'url' if is_url else 'data'}"
            if block.type == "document":
                parts.append(({"type": "file", "file": {"file_data": url, "filename": block.title}}, place))
            else:
                parts.append(({"type": "image_url", "image_url": {"url": url}}, place))
    return parts


def _tool_fields(body: CountTokensRequest, places: Places) -> dict[str, Any]:
    tools: list[dict[str, Any]] = []
    for index, tool in enumerate(body.tools or ()):
        if tool.is_skipped:
            continue
        ours, place = f"tools[{len(tools)}]", f"tools[{index}]"
        places[ours] = places[f"{ours}.function"] = place
        places[f"{ours}.function.parameters"] = f"{place}.input_schema"
        function = {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
            "strict": tool.strict,
        }
        tools.append({"type": "function", "function": function})
    choice = body.tool_choice
    if not tools and (choice is None or choice.type in ("auto", "none")):
        return {}
    fields: dict[str, Any] = {"tools": tools}
    if choice is not None:
        named = {"type": "function", "function": {"name": choice.name}}
        fields["tool_choice"] = named if choice.name else {"any": "required"}.get(choice.type, choice.type)
        fields["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    return fields


def _thinking_fields(body: CountTokensRequest, name: ModelName) -> dict[str, Any]:
    """Return the fields of a chat for the thinking. Without a switch in the template, a budget of 0 ends it at once."""
    fields: dict[str, Any] = {"reasoning_effort": body.output_config and body.output_config.effort}
    if body.thinking is None:
        return fields
    is_on = body.thinking.type != "disabled"
    if is_on or thinking_switches(name):
        fields["enable_thinking"] = is_on
    return fields | {"thinking_budget_tokens": body.thinking.budget_tokens if is_on else 0}


def _format_fields(body: CountTokensRequest) -> dict[str, Any]:
    if body.output_config is None or body.output_config.format is None:
        return {}
    schema = {"name": "answer", "schema": body.output_config.format.schema_}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
