"""Requests of OpenAI's Responses API to chats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.responses import (
    CALLS,
    COMPACTION_TRIGGER,
    InputTokensRequest,
    ResponseItem,
    ResponsePart,
    ResponsesRequest,
    ResponseTool,
    name_in,
)
from frontend.translate.placed_chat import Placed, PlacedMessages, chat_from
from frontend.translate.places import Places
from frontend.triton.models import ModelName

# The places of a chat's fields.
_PLACES = {
    "messages": "input",
    "n": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "logprobs": "include",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
}

type PlacedItem = tuple[str, ResponseItem]  # with its place in the body, or the field that names where it is stored


def responses_to_chat(
    body: InputTokensRequest, name: ModelName, places: Places, items: Iterable[PlacedItem] | None = None
) -> ChatCompletionRequest:
    """Return the chat that a request means. Without a limit the answer may fill the context window, as OpenAI's does.

    Args:
        places: gets those of the chat's parts.
        items: of the whole conversation; None: those of the input.

    Raises:
        InvalidRequest: a rule of chats is broken.
    """
    fields: dict[str, Any] = {"model": body.model, "reasoning_effort": body.effort}
    if isinstance(body, ResponsesRequest):
        names = ("temperature", "top_p", "stream", "service_tier", "prompt_cache_options", "prompt_cache_retention")
        fields |= {each: getattr(body, each) for each in names}
        limit = body.max_output_tokens
        if limit is None and (name.preset is None or "chat_max_tokens" not in name.preset.defaults):
            limit, fields["context_length_exceeded_behavior"] = name.model.parameters.context_window, "truncate"
        fields["max_completion_tokens"] = limit
        if body.has_logprobs:
            fields |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    for ours, theirs in _PLACES.items():
        places[ours] = theirs
    fields["messages"] = messages = PlacedMessages(places)
    _write_messages(body, input_items(body.input) if items is None else items, messages)
    chat = chat_from(fields | _tool_fields(body, places) | _format_fields(body), places)
    if body.truncation == "auto":  # turns are left out with their images, and the engine numbers the others
        for index, _ in enumerate(chat.image_urls()):
            places[f"images[{index}]"] = "input"
    return chat


def input_items(items: Iterable[ResponseItem]) -> list[PlacedItem]:
    """Return the items of an input with their places."""
    return [(f"input[{index}]", item) for index, item in enumerate(items)]


def _write_messages(body: InputTokensRequest, items: Iterable[PlacedItem], messages: PlacedMessages) -> None:
    if body.instructions is not None:
        messages.write("system", "instructions", [({"type": "text", "text": body.instructions}, "instructions")])
    for turn in _turns((place, item) for place, item in items if not item.is_skipped):
        place, item = turn[0]
        if item.type == COMPACTION_TRIGGER:
            continue
        if _is_of_model(item):
            _write_assistant(turn, messages)
        elif item.role is not None:
            messages.write(item.role, place, _content(f"{place}.content", item.content or ()))
        else:
            messages.write("tool", place, _content(f"{place}.output", item.output or ()), tool_call_id=item.call_id)


def _turns(items: Iterable[PlacedItem]) -> Iterator[list[PlacedItem]]:
    """Yield what the model wrote in one turn together, thinking, text and calls, and each other item alone.

    Behind a text, thinking or another text begins a new turn, but not while calls wait for their results.
    """
    turn: list[PlacedItem] = []
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


def _write_assistant(turn: Sequence[PlacedItem], messages: PlacedMessages) -> None:
    parts: list[Placed] = []
    for place, item in turn:
        if item.type == "message":
            parts += _content(f"{place}.content", item.content or ())
    calls = [(_past_call(item), f"{place}.name") for place, item in turn if item.type in CALLS]
    thoughts = "\n\n".join(filter(None, (item.thinking() for _, item in turn if item.type == "reasoning")))
    messages.write("assistant", turn[0][0], parts, calls, reasoning_content=thoughts or None)


def _past_call(item: ResponseItem) -> dict[str, Any]:
    name = name_in(item.namespace, item.name or "")
    if item.type == "function_call":
        called = {"type": "function", "function": {"name": name, "arguments": item.arguments}}
    else:
        called = {"type": "custom", "custom": {"name": name, "input": item.input}}
    return {"id": item.call_id, **called}


def _content(place: str, parts: Iterable[ResponsePart]) -> list[Placed]:
    placed: list[Placed] = []
    for index, part in enumerate(parts):
        where = f"{place}[{index}]"
        mark = part.prompt_cache_breakpoint
        marked = {} if mark is None else {"prompt_cache_breakpoint": mark}
        if part.image_url is not None:
            placed.append(({"type": "image_url", "image_url": {"url": part.image_url}} | marked, f"{where}.image_url"))
        elif part.type == "input_file":
            file = {"file_data": part.file_data or part.file_url, "filename": part.filename}
            name = "file_data" if part.file_data is not None else "file_url"
            placed.append(({"type": "file", "file": file} | marked, f"{where}.{name}"))
        elif part.refusal is not None:
            placed.append(({"type": "refusal", "refusal": part.refusal}, f"{where}.refusal"))
        else:
            placed.append(({"type": "text", "text": part.text} | marked, f"{where}.text"))
    return placed


def _tool_fields(body: InputTokensRequest, places: Places) -> dict[str, Any]:
    tools: list[dict[str, Any]] = []
    for name, _, tool, place in body.offered_tools():
        ours = f"tools[{len(tools)}]"
        places[ours] = places[f"{ours}.{tool.type}"] = place
        places[f"{ours}.custom.format.grammar"] = f"{place}.format"
        tools.append(_tool(name, tool))
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


def _tool(name: str, tool: ResponseTool) -> dict[str, Any]:
    described: dict[str, Any] = {"name": name, "description": tool.description}
    if tool.type == "function":
        described |= {"parameters": tool.parameters, "strict": tool.strict}
    elif tool.format is not None and tool.format.type == "grammar":
        grammar = {"syntax": tool.format.syntax, "definition": tool.format.definition}
        described |= {"format": {"type": "grammar", "grammar": grammar}}
    return {"type": tool.type, tool.type: described}


def _format_fields(body: InputTokensRequest) -> dict[str, Any]:
    form = body.text_format
    if form is None or form.type == "text":
        return {}
    if form.type == "json_object":
        return {"response_format": {"type": "json_object"}}
    schema = {"name": form.name, "description": form.description, "schema": form.schema_, "strict": form.strict}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
