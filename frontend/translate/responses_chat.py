"""Requests of OpenAI's Responses API to chats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from frontend.protocol.chat import ChatCompletionRequest, ChatMessage, ContentPart, ImageUrl, PlacedPart
from frontend.protocol.reading import error_from_validation
from frontend.protocol.response_format import PlacedFormat
from frontend.protocol.responses import (
    CALLS,
    InputTokensRequest,
    ResponseItem,
    ResponsePart,
    ResponsesRequest,
    ResponseTool,
    name_in,
)
from frontend.protocol.tools import PastCustomCall, PastFunctionCall, PastToolCall, PlacedTool
from frontend.triton.models import ModelName

type _Placed = tuple[str, ResponseItem]  # an item and its place in the body


def responses_to_chat(body: InputTokensRequest, name: ModelName) -> ChatCompletionRequest:
    """Return the chat that a request means. Without a limit the answer may fill the context window, as OpenAI's does.

    Raises:
        APIError: a rule of chats is broken.
    """
    fields: dict[str, Any] = {}
    if isinstance(body, ResponsesRequest):
        names = ("temperature", "top_p", "stream", "service_tier")
        fields = {each: getattr(body, each) for each in names}
        limit = body.max_output_tokens
        if limit is None:
            limit, fields["context_length_exceeded_behavior"] = name.model.parameters.context_window, "truncate"
        fields["max_completion_tokens"] = limit
        if body.has_logprobs:
            fields |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    try:
        return ChatCompletionRequest(
            model=body.model,
            messages=list(_messages(body)),
            reasoning_effort=body.effort,
            **fields,
            **_tool_fields(body),
            **_format_fields(body),
        )
    except ValidationError as exc:
        raise error_from_validation(exc) from exc


def _messages(body: InputTokensRequest) -> Iterator[ChatMessage]:
    if body.instructions is not None:
        text = PlacedPart(type="text", text=body.instructions, source="instructions")
        yield ChatMessage(role="system", content=[text])
    items = [(f"input[{index}]", item) for index, item in enumerate(body.input) if not item.is_skipped]
    for turn in _turns(items):
        place, item = turn[0]
        if _is_of_model(item):
            yield _assistant(turn)
        elif item.role is not None:
            yield ChatMessage(role=item.role, content=_content(f"{place}.content", item.content or ()))
        else:
            parts = _content(f"{place}.output", item.output or ())
            yield ChatMessage(role="tool", tool_call_id=item.call_id, content=parts)


def _turns(items: Iterable[_Placed]) -> Iterator[list[_Placed]]:
    """Yield what the model wrote in one turn together, thinking, text and calls, and each other item alone.

    Behind a text, thinking or another text begins a new turn, but not while calls wait for their results.
    """
    turn: list[_Placed] = []
    types: set[str] = set()  # of the turn's items
    for placed in items:
        goes_on = placed[1].type in CALLS or bool(types & {*CALLS}) or "message" not in types
        if turn and not (goes_on and _is_of_model(placed[1]) and _is_of_model(turn[0][1])):
            yield turn
            turn, types = [], set()
        turn.append(placed)
        types.add(placed[1].type)
    if turn:
        yield turn


def _is_of_model(item: ResponseItem) -> bool:
    return item.type == "reasoning" or item.type in CALLS or item.role == "assistant"


def _assistant(turn: Sequence[_Placed]) -> ChatMessage:
    parts: list[ContentPart] = []
    for place, item in turn:
        if item.type == "message":
            parts += _content(f"{place}.content", item.content or ())
    calls = [_past_call(item) for _, item in turn if item.type in CALLS]
    thoughts = "\n\n".join(filter(None, (item.thinking() for _, item in turn if item.type == "reasoning")))
    return ChatMessage(
        role="assistant", content=parts or None, reasoning_content=thoughts or None, tool_calls=calls or None
    )


def _past_call(item: ResponseItem) -> PastToolCall:
    identity, name = item.call_id or "", name_in(item.namespace, item.name or "")
    if item.type == "function_call":
        function = PastFunctionCall(name=name, arguments=item.arguments or "")
        return PastToolCall(id=identity, function=function)
    return PastToolCall(id=identity, type="custom", custom=PastCustomCall(name=name, input=item.input or ""))


def _content(place: str, parts: Iterable[ResponsePart]) -> list[ContentPart]:
    placed: list[ContentPart] = []
    for index, part in enumerate(parts):
        where = f"{place}[{index}]"
        if part.image_url is not None:
            url = ImageUrl(url=part.image_url)
            placed.append(PlacedPart(type="image_url", image_url=url, source=f"{where}.image_url"))
        elif part.refusal is not None:
            placed.append(PlacedPart(type="refusal", refusal=part.refusal, source=f"{where}.refusal"))
        else:
            placed.append(PlacedPart(type="text", text=part.text, source=f"{where}.text"))
    return placed


def _tool_fields(body: InputTokensRequest) -> dict[str, Any]:
    tools = [_tool(name, tool, place) for name, _, tool, place in body.offered_tools()]
    choice = body.tool_choice
    if not tools and (choice is None or choice.type in ("auto", "none")):
        return {}
    fields: dict[str, Any] = {"tools": tools, "parallel_tool_calls": body.parallel_tool_calls}
    if choice is None:
        return fields
    value: Any = choice.type
    if choice.name is not None:
        value = {"type": choice.type, choice.type: {"name": choice.name}}
    elif choice.type == "allowed_tools":
        named = [tool for tool in choice.tools or () if not tool.is_skipped]
        allowed = [{"type": tool.type, tool.type: {"name": tool.name}} for tool in named]
        value = {"type": choice.type, choice.type: {"mode": choice.mode, "tools": allowed}}
    return fields | {"tool_choice": value}


def _tool(name: str, tool: ResponseTool, place: str) -> PlacedTool:
    sources = {"function": place, "custom": place, "custom.format.grammar": f"{place}.format"}
    described: dict[str, Any] = {"name": name, "description": tool.description}
    if tool.type == "function":
        described |= {"parameters": tool.parameters, "strict": tool.strict}
    elif tool.format is not None and tool.format.type == "grammar":
        grammar = {"syntax": tool.format.syntax, "definition": tool.format.definition}
        described |= {"format": {"type": "grammar", "grammar": grammar}}
    return PlacedTool.model_validate({"type": tool.type, tool.type: described, "sources": sources})


def _format_fields(body: InputTokensRequest) -> dict[str, Any]:
    form = body.text_format
    if form is None or form.type == "text":
        return {}
    if form.type == "json_object":
        return {"response_format": {"type": "json_object"}}
    schema = {"name": form.name, "description": form.description, "schema": form.schema_, "strict": form.strict}
    placed = {"type": "json_schema", "json_schema": schema, "source": "text.format"}
    return {"response_format": PlacedFormat.model_validate(placed)}
