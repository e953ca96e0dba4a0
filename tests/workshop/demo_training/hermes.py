"""Tools in the format of the chat template: that of Hermes and Qwen2.5, with a shorter list of the tools."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from model_repository.tool_formats import HERMES

CALL, CALL_END = HERMES.special_tokens
RESPONSE, RESPONSE_END = "<tool_response>", "</tool_response>"


def to_json(value: Any) -> str:
    """Write JSON as `tojson` does in chat templates: on one line, with spaces and without escapes for letters."""
    return json.dumps(value, ensure_ascii=False)


def tool_line(tool: Mapping[str, Any]) -> str:
    """Write a tool as `get_weather(city, unit): Get the weather of a city.`"""
    function = tool["function"]
    names = ", ".join(function.get("parameters", {}).get("properties", {}))
    description = function.get("description")
    return f"{function['name']}({names})" + (f": {description}" if description else "")


def system_content(content: str, tools: Iterable[Mapping[str, Any]]) -> str:
    """Put the list of the tools after the system prompt, which may be empty."""
    listed = "\n".join(["Tools:", *map(tool_line, tools)])
    return f"{content}\n\n{listed}" if content else listed


def calls_text(calls: Iterable[Mapping[str, Any]]) -> str:
    """Write the calls of an assistant's message, one after the other."""
    functions = (call["function"] for call in calls)
    return HERMES.calls_text((function["name"], to_json(function["arguments"])) for function in functions)
