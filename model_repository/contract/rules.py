"""The rules of a request from any client: ranges, roles, tools, and fields that need each other."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from typing import Any

import msgspec

from model_repository.contract.request import (
    MAX_TOP_LOGPROBS,
    ChatPrompt,
    ContextOverflow,
    GenerationRequest,
    OutputFormat,
    PairPrompt,
    Params,
    Prompt,
    TextPrompt,
    ToolUse,
)
from model_repository.contract.spec import TensorSpec, set_fields
from model_repository.errors import InvalidRequest, PromptTooLong

MAX_TOOLS = 512  # MCP servers together offer hundreds; the checks of their schemas have limits of their own
MAX_DEFINITION_CHARS = 5_000  # the grammar of a custom tool's input
MAX_TOOLS_CHARS = 300_000  # all tools together, as JSON: their schemas are read before the first token
_MAX_REQUEST_ID_CHARS = 160

# The roles of OpenAI's API, and of the templates of Llama 3, Gemma and Granite. A template may build a special token
# around a role, so a user must not be able to choose its text.
ROLES = (
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
    "function",
    "ipython",
    "model",
    "document",
)


def check_request(request: GenerationRequest) -> None:
    """Check a request's values against their declarations, and against each other.

    Raises:
        InvalidRequest: names the tensor and the rule.
    """
    check_prompt(request.prompt)
    check_declared(request)
    params = request.params
    if params.max_tokens == 0 and not params.is_echo:
        raise InvalidRequest("0 must be at least 1, unless exclude_input_in_output is false", "max_tokens")
    if params.min_tokens > params.max_tokens:
        raise InvalidRequest(f"{params.min_tokens} must be at most max_tokens, {params.max_tokens}", "min_tokens")
    if params.num_top_logprobs and not params.has_logprobs:
        raise InvalidRequest("needs return_log_probs to be true", "top_logprobs")
    if params.stream_interval_ms is not None and not params.is_stream:
        raise InvalidRequest("needs stream to be true", "stream_interval_ms")
    if request.images and params.is_echo:
        raise InvalidRequest("a prompt with images has no echo", "images")
    if params.num_prompt_logprobs is not None:
        _check_prompt_logprobs(params.num_prompt_logprobs, has_images=bool(request.images))
    if params.truncate_prompt_tokens is not None:
        _check_truncation(params.truncate_prompt_tokens, request)
    _check_structured_output(params)


def _check_prompt_logprobs(count: int, *, has_images: bool) -> None:
    if has_images:
        raise InvalidRequest("a prompt with images has none", "prompt_logprobs")
    if not 0 <= count <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"{count} must be at least 0 and at most {MAX_TOP_LOGPROBS}", "prompt_logprobs")


def _check_truncation(num_tokens: int, request: GenerationRequest) -> None:
    rule = ""
    if num_tokens == 0:
        rule = "0 must be at least 1, or -1"
    elif request.images:
        rule = "a prompt with images is not truncated: it could lose one"
    elif isinstance(request.prompt, TextPrompt) and request.prompt.suffix:
        rule = "a prompt with a suffix is not truncated: it would lose its first marker"
    if rule:
        raise InvalidRequest(rule, "truncate_prompt_tokens")


def num_kept_tokens(params: Params, num_prompt_tokens: int, context_window: int) -> int:
    """Return the number of a prompt's last tokens that `truncate_prompt_tokens` keeps.

    A `max_tokens` that fills the context window would leave no prompt, so -1 then leaves room for one token.
    """
    limit = params.truncate_prompt_tokens
    if limit is None:
        return num_prompt_tokens
    if limit == -1:
        limit = context_window - (params.max_tokens if params.max_tokens < context_window else 1)
    return min(limit, num_prompt_tokens)


def fitting_max_tokens(params: Params, num_prompt_tokens: int, context_window: int, field: str) -> int:
    """Return `max_tokens`, lowered to the room that the prompt leaves, if the request allows that.

    Args:
        field: the input that carries the prompt.

    Raises:
        PromptTooLong: the prompt leaves no room for one token, or not enough for a `max_tokens` that must not change.
        InvalidRequest: `min_tokens` do not fit.
    """
    room = context_window - num_prompt_tokens
    if room < min(params.max_tokens, 1):
        rule = ", and the completion needs at least one" if params.max_tokens else ""
        raise PromptTooLong(prompt_too_long(context_window, f"{num_prompt_tokens} tokens{rule}"), field)
    if params.max_tokens > room and params.overflow is ContextOverflow.ERROR:
        sizes = f"{num_prompt_tokens} tokens, and the completion may have {params.max_tokens}"
        raise PromptTooLong(prompt_too_long(context_window, sizes), field)
    if params.min_tokens > room:
        rule = f"the prompt has {num_prompt_tokens} tokens, which leaves {room}"
        window = f"the context window is {context_window} tokens"
        raise InvalidRequest(f"{params.min_tokens} do not fit: {window}, and {rule}", "min_tokens")
    return min(params.max_tokens, room)


def prompt_too_long(context_window: int, num_tokens: str) -> str:
    """Return the message of an overflow, in the words by which clients know one: LiteLLM, LangChain and others.

    Args:
        num_tokens: of the prompt, in words.
    """
    limit = f"This model's maximum context length is {context_window} tokens"
    return f"the prompt is too long. {limit}: the prompt has {num_tokens}"


def printable_id(request_id: str) -> str:
    """Return a request's name for logs: one line of limited length."""
    shown = request_id[:_MAX_REQUEST_ID_CHARS]
    return shown if shown.isprintable() else ascii(shown)[:_MAX_REQUEST_ID_CHARS]


def check_prompt(prompt: Prompt) -> None:
    """Check the messages and tools of a chat, and the texts of a pair.

    Raises:
        InvalidRequest: names the message, the tool or the pair, and the rule.
    """
    if isinstance(prompt, PairPrompt) and (len(prompt.texts) != 2 or not all(prompt.texts)):
        raise InvalidRequest("expected two texts, neither of them empty", "text_pair")
    if not isinstance(prompt, ChatPrompt):
        return
    if not prompt.messages:
        raise InvalidRequest("expected a list of at least one message", "messages")
    for index, message in enumerate(prompt.messages):
        _check_message(message, f"messages[{index}]")
    if prompt.continue_final_message and prompt.add_generation_prompt:
        raise InvalidRequest("needs add_generation_prompt to be false", "continue_final_message")
    if prompt.tool_use is not None:
        _check_tool_use(prompt.tool_use)


def _check_message(message: Any, field: str) -> None:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InvalidRequest("expected an object with a string `role`", field)
    if message["role"] not in ROLES:
        rule = f"must be one of {', '.join(ROLES)}"
        raise InvalidRequest(f"{message['role'][:50]!r} {rule}", f"{field}.role")
    content = message.get("content")
    if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
        raise InvalidRequest("expected `content` to be a string or a list of text parts", field)


def _check_tool_use(tool_use: ToolUse) -> None:
    if len(tool_use.tools) > MAX_TOOLS:
        raise InvalidRequest(f"{len(tool_use.tools)} tools: there may be {MAX_TOOLS}", "tools")
    if len(json.dumps(tool_use.tools, ensure_ascii=False)) > MAX_TOOLS_CHARS:
        raise InvalidRequest(f"together they may have {MAX_TOOLS_CHARS} characters", "tools")
    if not tool_use.tools and tool_use.choice not in ("none", "auto"):
        raise InvalidRequest(f"{tool_use.choice!r} needs tools", "tool_choice")
    for index, tool in enumerate(tool_use.tools):
        if not _is_tool(tool):
            rule = 'expected {"type": "function", "function": {"name": str, "parameters": object, "strict": bool}}'
            raise InvalidRequest(f"{rule}, or a custom tool", f"tools[{index}]")
    forced = [f"function:{tool[tool['type']]['name']}" for tool in tool_use.tools]
    if tool_use.choice not in ("none", "auto", "required", *forced):
        rule = f"must be none, auto, required or one of {', '.join(forced)}"
        raise InvalidRequest(f"{tool_use.choice!r} {rule}", "tool_choice")


def _is_tool(tool: Any) -> bool:
    match tool:
        case {"type": "function", "function": {"name": str(name), **rest}}:
            is_strict_known = isinstance(rest.get("strict"), bool | None)
            return bool(name) and isinstance(rest.get("parameters") or {}, dict) and is_strict_known
        case {"type": "custom", "custom": {"name": str(name), **rest}}:
            return bool(name) and _is_input_format(rest.get("format"))
        case _:
            return False


def _is_input_format(value: Any) -> bool:
    match value:
        case None | {"type": "text"}:
            return True
        case {"type": "grammar", "grammar": {"syntax": "lark" | "regex", "definition": str(definition)}}:
            return len(definition) <= MAX_DEFINITION_CHARS
        case _:
            return False


def _check_structured_output(params: Params) -> None:
    output = params.structured_output
    if output is None:
        return
    if output.format is OutputFormat.JSON_OBJECT and output.content:
        rule = f"{output.format} takes none: the type for a schema is {OutputFormat.JSON_SCHEMA}"
        raise InvalidRequest(rule, "guided_decoding_guide")
    if output.format is not OutputFormat.JSON_SCHEMA and not output.is_strict:
        raise InvalidRequest(f"goes with {OutputFormat.JSON_SCHEMA} only", "guided_decoding_strict")


def check_declared(message: msgspec.Struct) -> None:
    """Check the fields with other values than their defaults against their own declarations.

    Raises:
        InvalidRequest: names the tensor, the value and the rule.
    """
    for field, value in set_fields(message, "has_rules"):
        if field.is_message:
            check_declared(value)
        elif len(field.specs) == 2:
            _check_values(field.specs[0], value.keys())
            _check_values(field.specs[1], value.values())
        else:
            _check_values(field.specs[0], value if field.is_list else (value,))


def _check_values(spec: TensorSpec, values: Collection[Any]) -> None:
    if spec.max_items is not None and len(values) > spec.max_items:
        raise InvalidRequest(f"{len(values)} elements: there may be {spec.max_items}", spec.name)
    for value in values:
        if spec.words and value not in spec.words:
            raise InvalidRequest(f"{value!r} must be one of {', '.join(spec.words)}", spec.name)
        if spec.max_chars is not None and len(value) > spec.max_chars:
            raise InvalidRequest(f"a text of {len(value)} characters: at most {spec.max_chars} are allowed", spec.name)
        if spec.low is not None or spec.high is not None:
            _check_range(spec, value)


def _check_range(spec: TensorSpec, value: float) -> None:
    low = -math.inf if spec.low is None else spec.low
    high = math.inf if spec.highest is None else spec.highest
    if low <= value <= high and not (spec.is_low_open and value == low):  # NaN fails every comparison
        return
    rule = f"must be {'above' if spec.is_low_open else 'at least'} {low}" if low > -math.inf else "must be"
    upper = f"{' and' if low > -math.inf else ''} at most {high}" if high < math.inf else ""
    raise InvalidRequest(f"{value} {rule}{upper}", spec.name)
