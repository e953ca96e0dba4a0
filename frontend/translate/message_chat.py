"""Requests of Anthropic's Messages API to chats."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import ValidationError

from frontend.protocol.chat import ChatCompletionRequest, ChatMessage, ContentPart, ImageUrl, PlacedPart
from frontend.protocol.messages import CountTokensRequest, InputBlock, InputMessage, MessagesRequest
from frontend.protocol.reading import error_from_validation
from frontend.protocol.response_format import PlacedFormat
from frontend.protocol.tools import PastFunctionCall, PastToolCall, PlacedTool
from frontend.translate.requests import thinking_switches
from frontend.triton.models import ModelName

# Claude Code begins its system prompt with this line. It changes with each request, and no prompt would begin like an
# earlier one. Source: https://github.com/anthropics/claude-code/issues/68900
_BILLING_HEADER = "x-anthropic-billing-header:"


def messages_to_chat(body: CountTokensRequest, name: ModelName, has_billing_header: bool) -> ChatCompletionRequest:
    """Return the chat that a request means.

    Args:
        has_billing_header: keep Claude Code's line in the system prompt.

    Raises:
        APIError: a rule of chats is broken.
    """
    fields: dict[str, Any] = {}
    if isinstance(body, MessagesRequest):
        names = ("max_tokens", "temperature", "top_p", "top_k", "stream")
        fields = {each: getattr(body, each) for each in names}
        fields |= {"stop": body.stop_sequences, "include_stop_str_in_output": False}
    last = body.messages[-1]
    types = {block.type for block in last.content}
    if last.role == "assistant" and "text" in types and "tool_use" not in types:
        fields |= {"add_generation_prompt": False, "continue_final_message": True}
    try:
        return ChatCompletionRequest(
            model=body.model,
            messages=[*_system(body, has_billing_header), *_messages(body.messages)],
            **fields,
            **_tool_fields(body),
            **_thinking_fields(body, name),
            **_format_fields(body),
        )
    except ValidationError as exc:
        raise error_from_validation(exc) from exc


def _system(body: CountTokensRequest, has_billing_header: bool) -> Iterator[ChatMessage]:
    parts: list[ContentPart] = []
    for index, block in enumerate(body.system or ()):
        text = block.text
        if text.startswith(_BILLING_HEADER) and not has_billing_header:
            text = text.partition("\n")[2]
            if not text:
                continue
        parts.append(PlacedPart(type="text", text=text, source=f"system[{index}].text"))
    if parts:
        yield ChatMessage(role="system", content=parts)


def _messages(messages: Iterable[InputMessage]) -> Iterator[ChatMessage]:
    """Yield the messages of the chat: each result of a tool is one of its own."""
    for index, message in enumerate(messages):
        place = f"messages[{index}].content"
        if message.role == "assistant":
            yield _assistant(message, place)
            continue
        parts: list[ContentPart] = []
        has_results = False
        for number, block in enumerate(message.content):
            if block.type != "tool_result":
                parts += _parts([(f"{place}[{number}]", block)])
                continue
            if parts:
                yield ChatMessage(role=message.role, content=parts)
            has_results, parts = True, []
            yield _result(block, f"{place}[{number}]")
        if parts or not has_results:
            yield ChatMessage(role=message.role, content=parts)


def _assistant(message: InputMessage, place: str) -> ChatMessage:
    thoughts = [block.thinking for block in message.content if block.thinking is not None]
    calls = [
        PastToolCall(
            id=block.id or "",
            function=PastFunctionCall(name=block.name or "", arguments=json.dumps(block.input, ensure_ascii=False)),
        )
        for block in message.content
        if block.type == "tool_use"
    ]
    return ChatMessage(
        role="assistant",
        content=_parts((f"{place}[{number}]", block) for number, block in enumerate(message.content)),
        reasoning_content="\n\n".join(thoughts) or None,
        tool_calls=calls or None,
    )


def _result(block: InputBlock, place: str) -> ChatMessage:
    parts = _parts((f"{place}.content[{number}]", inner) for number, inner in enumerate(block.content or ()))
    if block.is_error:  # templates know no such field
        parts.insert(0, ContentPart(type="text", text="Error:"))
    return ChatMessage(role="tool", tool_call_id=block.tool_use_id, content=parts)


def _parts(blocks: Iterable[tuple[str, InputBlock]]) -> list[ContentPart]:
    """Return the texts and images of blocks, which come with their places."""
    parts: list[ContentPart] = []
    for place, block in blocks:
        if block.text is not None:
            parts.append(PlacedPart(type="text", text=block.text, source=f"{place}.text"))
        elif block.source is not None and block.source.type == "text":
            parts.append(PlacedPart(type="text", text=block.source.data, source=f"{place}.source.data"))
        elif block.source is not None:
            source = block.source
            is_url = source.type == "url"
            url = source.url if is_url else f"data:{source.media_type};base64,{source.data}"
            place = f"{place}.source.{'url' if is_url else 'data'}"
            parts.append(PlacedPart(type="image_url", image_url=ImageUrl(url=url or ""), source=place))
    return parts


def _tool_fields(body: CountTokensRequest) -> dict[str, Any]:
    tools = [(f"tools[{index}]", tool) for index, tool in enumerate(body.tools or ()) if not tool.is_skipped]
    choice = body.tool_choice
    if not tools and (choice is None or choice.type in ("auto", "none")):
        return {}
    fields: dict[str, Any] = {
        "tools": [
            PlacedTool.model_validate(
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.input_schema,
                        "strict": tool.strict,
                    },
                    "sources": {"function": place, "function.parameters": f"{place}.input_schema"},
                }
            )
            for place, tool in tools
        ]
    }
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
    placed = {"type": "json_schema", "json_schema": schema, "source": "output_config.format"}
    return {"response_format": PlacedFormat.model_validate(placed)}
