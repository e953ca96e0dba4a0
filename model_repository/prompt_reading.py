"""The ensemble's inputs that carry a prompt, read: checked, and complete."""

from __future__ import annotations

from typing import Any

from model_repository import contract
from model_repository.contract import TensorSpec
from model_repository.errors import InvalidRequest
from model_repository.generation import (
    ChatPrompt,
    Prompt,
    TextPrompt,
    TokenPrompt,
    ToolUse,
)
from model_repository.tensors import Tensors, json_value, numbers, scalar, text

MAX_TOOLS = 128
MAX_TOOLS_CHARS = 300_000  # of all together, as JSON: their schemas are read before anything is generated

# Those of OpenAI's API, and those that templates of Llama 3, Gemma and Granite know beside them. A template may build a
# special token around a role, so it must be no text of a user's choice.
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


def read_prompt(tensors: Tensors) -> Prompt:
    """Return the prompt: exactly one of its forms must be there.

    Raises:
        InvalidRequest: none or several are, or it is malformed.
    """
    specs = (contract.TEXT_INPUT, contract.MESSAGES, contract.INPUT_IDS)
    sent = [spec for spec in specs if spec.name in tensors]
    # NVIDIA's clients always send text_input; an empty one beside another form of prompt is no second prompt.
    if len(sent) > 1 and not text(tensors, contract.TEXT_INPUT):
        sent = [spec for spec in sent if spec is not contract.TEXT_INPUT]
    if len(sent) != 1:
        raise InvalidRequest(f"expected exactly one of {', '.join(spec.name for spec in specs)}", "text_input")
    form = sent[0]
    _refuse_without(tensors, form, contract.TEXT_INPUT, (contract.SUFFIX,))
    chat_only = (
        contract.TOOLS,
        contract.TOOL_CHOICE,
        contract.PARALLEL_TOOL_CALLS,
        contract.CHAT_TEMPLATE_KWARGS,
        contract.ADD_GENERATION_PROMPT,
        contract.CONTINUE_FINAL_MESSAGE,
    )
    _refuse_without(tensors, form, contract.MESSAGES, chat_only)
    if form is contract.MESSAGES:
        return _read_chat(tensors)
    if form is contract.INPUT_IDS:
        return TokenPrompt(tuple(numbers(tensors, contract.INPUT_IDS)))
    return TextPrompt(text(tensors, contract.TEXT_INPUT), text(tensors, contract.SUFFIX))


def _refuse_without(tensors: Tensors, form: TensorSpec, needed: TensorSpec, specs: tuple[TensorSpec, ...]) -> None:
    for spec in specs:
        if form is not needed and spec.name in tensors:
            raise InvalidRequest(f"goes with {needed.name} only", spec.name)


def _read_chat(tensors: Tensors) -> ChatPrompt:
    messages = json_value(tensors, contract.MESSAGES, [])
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("expected a list of at least one message", contract.MESSAGES.name)
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidRequest("expected an object with a string `role`", f"messages[{index}]")
        if message["role"] not in ROLES:
            rule = f"must be one of {', '.join(ROLES)}"
            raise InvalidRequest(f"{message['role'][:50]!r} {rule}", f"messages[{index}].role")
        if not isinstance(message.get("content"), str) and not (
            message.get("content") is None and message.get("tool_calls")
        ):
            raise InvalidRequest("expected `content` to be a string", f"messages[{index}]")
    kwargs = json_value(tensors, contract.CHAT_TEMPLATE_KWARGS, {})
    if not isinstance(kwargs, dict):
        raise InvalidRequest("expected a JSON object", contract.CHAT_TEMPLATE_KWARGS.name)
    continues = bool(scalar(tensors, contract.CONTINUE_FINAL_MESSAGE, False))
    opens = bool(scalar(tensors, contract.ADD_GENERATION_PROMPT, True))
    if continues and opens:
        rule = f"needs {contract.ADD_GENERATION_PROMPT.name} to be false"
        raise InvalidRequest(rule, contract.CONTINUE_FINAL_MESSAGE.name)
    return ChatPrompt(tuple(messages), _read_tool_use(tensors), kwargs, opens, continues)


def _read_tool_use(tensors: Tensors) -> ToolUse | None:
    tools = json_value(tensors, contract.TOOLS, [])
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS or len(text(tensors, contract.TOOLS)) > MAX_TOOLS_CHARS:
        rule = f"expected a list of at most {MAX_TOOLS} tools with {MAX_TOOLS_CHARS} characters"
        raise InvalidRequest(rule, contract.TOOLS.name)
    for index, tool in enumerate(tools):
        if not _is_tool(tool):
            rule = 'expected {"type": "function", "function": {"name": str, "parameters": object, "strict": bool}}'
            raise InvalidRequest(rule, f"tools[{index}]")
    names = [tool["function"]["name"] for tool in tools]
    choice = text(tensors, contract.TOOL_CHOICE) or "auto"
    if not tools and choice not in ("none", "auto"):
        raise InvalidRequest(f"{choice!r} needs {contract.TOOLS.name}", contract.TOOL_CHOICE.name)
    if choice not in ("none", "auto", "required", *(f"function:{name}" for name in names)):
        rule = f"must be none, auto, required or one of {', '.join(f'function:{name}' for name in names)}"
        raise InvalidRequest(f"{choice!r} {rule}", contract.TOOL_CHOICE.name)
    if not tools:
        return None
    return ToolUse(
        tools=tuple(tools), choice=choice, is_parallel=bool(scalar(tensors, contract.PARALLEL_TOOL_CALLS, True))
    )


def _is_tool(tool: Any) -> bool:
    match tool:
        case {"type": "function", "function": {"name": str(name), **rest}}:
            is_strict_known = isinstance(rest.get("strict"), bool | None)
            return bool(name) and isinstance(rest.get("parameters") or {}, dict) and is_strict_known
        case _:
            return False
