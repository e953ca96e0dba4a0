"""The grammar of a whole answer with tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from model_repository.contract.request import ToolUse
from model_repository.errors import InvalidRequest
from model_repository.notations import NAME
from model_repository.tokenizer.argument_grammar import ArgumentGrammar, literal
from model_repository.tool_formats import ToolFormat

MAX_CALLS = 16  # calls of one answer: a repetitive model should end before max_tokens

# A name stands in JSON strings and on separate lines, without escapes.
_NAME = re.compile(r'[^"\\\x00-\x1f\x7f\ud800-\udfff]{1,256}')
_NAME_IN_HEAD = re.compile(r"[^\s<]+")
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_ANNOTATIONS = ("$schema", "title", "description")


type PrepareSchema = Callable[[object, str, bool], dict[str, Any]]


def tool_grammar(
    tool_use: ToolUse, tool_format: ToolFormat, prepare_schema: PrepareSchema, *, content: str | None = None
) -> str | None:
    """Return the rules of an answer, in llguidance's dialect of Lark; None without tools.

    With `auto` it is free text up to the format's trigger, and calls behind it; or calls instead of content of a form.
    Otherwise it is calls only. A call names an offered tool, with arguments that its schema allows. Calls are the end.

    Args:
        tool_use: of a request that was checked, and with another choice than `none`.
        content: with `auto`, the rule for an answer without calls; None: free text.
        prepare_schema: gets a JSON schema, its place, as in `tools[0].function.parameters`, and its strictness; returns
            the schema that llguidance enforces, or raises.

    Raises:
        InvalidRequest: a tool's name or the schema of its arguments cannot be written in a call.
    """
    tools = _offered_tools(tool_use, tool_format, prepare_schema)
    if not tools:
        return None
    is_repeatable = tool_use.is_parallel and not tool_format.has_messages and tool_use.choice in ("auto", "required")
    next_call = f"{literal(tool_format.between_calls + tool_format.before_name)} call"
    more = f"({next_call}){{0,{MAX_CALLS - 1}}}" if is_repeatable else ""
    alternatives = " | ".join(f"tool_{number}" for number in range(len(tools)))
    rules = [
        f"more: {more} {literal(tool_format.after_calls)}",
        f"call: ({alternatives}) {literal(tool_format.after_arguments)}",
    ]
    number_rule = ""
    if tool_format.before_number:
        rules.append(f"NUMBER: /[0-9]{{{tool_format.num_digits},5}}/")
        number_rule = f"{literal(tool_format.before_number)} NUMBER "
    opening = tool_format.before_calls + tool_format.before_name
    first_call = f"{literal(opening)} call"
    if tool_format.notation is not None:
        grammar = ArgumentGrammar(tool_format.notation)
        arguments = [grammar.arguments(schema, place) for _, schema, place in tools]
        rules += grammar.rules
        if not tool_format.trigger:
            # The opening alone may begin a text, so the lexer must not end there.
            heads = (literal(f"{opening}{name}{tool_format.before_arguments}") for name, _, _ in tools)
            firsts = " | ".join(f"{head} {each}" for head, each in zip(heads, arguments, strict=True))
            first_call = f"({firsts}) {literal(tool_format.after_arguments)}"
    else:
        rules += [f"arguments_{number}: %json {json.dumps(schema)}" for number, (_, schema, _) in enumerate(tools)]
        arguments = [f"arguments_{number}" for number in range(len(tools))]
    for number, ((name, _, _), each) in enumerate(zip(tools, arguments, strict=True)):
        before = literal(tool_format.before_arguments)
        if tool_format.has_messages:  # the model writes both
            before = f'" "? {literal(tool_format.before_arguments.removeprefix(" "))}'
        head = f"{literal(name)} {number_rule}{before}"
        rules.append(f"tool_{number}: {head} {each}")
    if tool_format.other_before_name:
        others = (
            f"{literal(tool_format.other_before_name + name + tool_format.other_before_arguments)} {each}"
            for (name, _, _), each in zip(tools, arguments, strict=True)
        )
        first_call = f"({first_call} | {' | '.join(others)})"
    start = _start(tool_format, content, first_call, is_forced=tool_use.choice != "auto")
    return "\n".join([*start, *rules]) + "\n"


def _start(tool_format: ToolFormat, content: str | None, first_call: str, *, is_forced: bool) -> list[str]:
    if tool_format.has_messages:
        return _messages(first_call, content, is_forced=is_forced)
    if is_forced:
        return [f"start: {first_call} more"]
    if content is not None:
        return [f"start: content | {first_call} more", f"content: {content}"]
    if tool_format.trigger:
        # `head` is lazy and ends at the first trigger, so text behind a trigger never matches TEXT.
        opening = (tool_format.before_calls + tool_format.before_name).removeprefix(tool_format.trigger)
        return [
            f"start: TEXT | head {literal(opening)} call more",
            f"head[lazy]: TEXT {literal(tool_format.trigger)}",
            r"TEXT: /(.|\n)*/",
        ]
    prefix, head = re.escape(tool_format.answer_prefix), re.escape(tool_format.before_name[:1])
    if tool_format.notation is not None:
        head = (
            re.escape(tool_format.before_calls) + NAME.replace("/", r"\x2f") + re.escape(tool_format.before_arguments)
        )
    return [
        f"start: TEXT | {literal(tool_format.answer_prefix)}? {first_call} more",
        rf"TEXT: /(.|\n)*/ & ~/[ \t\r\n]*{head}(.|\n)*/ & ~/(.|\n)*{prefix}(.|\n)*/",
    ]


def grammar_of_messages(content: str) -> str:
    """Return the rules of a completion in Harmony's messages.

    Args:
        content: the rule for the content of the last message. Messages with thinking may precede it.
    """
    return "\n".join(_messages("", content, is_forced=False)) + "\n"


def _messages(call: str, content: str | None, *, is_forced: bool) -> list[str]:
    """Return the rules of Harmony's messages. Their texts cannot contain what ends them.

    Args:
        call: the rule of a call with its head; empty: there are no calls.
        content: the rule for an answer without calls; None: free text, and texts to the user may precede the answer.
        is_forced: a call is the answer.
    """
    answers = " | ".join(filter(None, ["" if is_forced else "final", call]))
    channels = ["analysis"] if is_forced or content is not None else ["analysis", "commentary"]
    heads = " | ".join(literal(f"<|channel|>{channel}<|message|>") for channel in channels)
    return [
        f"start: message* ({answers})",
        *([] if is_forced else [f"final: {literal('<|channel|>final<|message|>')} {content or 'TEXT'}"]),
        f"message: ({heads}) rest {literal('<|start|>assistant')}",
        f"rest[lazy]: ANY {literal('<|end|>')}",
        r"ANY: /(.|\n)*/",
        *([] if is_forced or content is not None else [r"TEXT: /(.|\n)*/ & ~/(.|\n)*<\|end\|>(.|\n)*/"]),
    ]


def _offered_tools(
    tool_use: ToolUse, tool_format: ToolFormat, prepare_schema: PrepareSchema
) -> list[tuple[str, dict[str, Any], str]]:
    """Return name and schema of each tool that may be called, and the schema's place."""
    offered = []
    for number, tool in enumerate(tool_use.tools):
        place, function = f"tools[{number}].function", tool["function"]
        name = function["name"]
        if not _NAME.fullmatch(name):
            rule = "expected 1 to 256 characters without quotes, backslashes and controls"
            raise InvalidRequest(f"{name!r}: {rule}", f"{place}.name")
        if tool_format.notation is not None and not re.fullmatch(NAME, name):
            rule = "names in this model's calls have letters, digits and _ . $ @ / - only"
            raise InvalidRequest(f"{name!r}: {rule}", f"{place}.name")
        if tool_format.notation is None and tool_format.before_arguments in name:
            rule = f"{tool_format.before_arguments} ends the name in this model's calls"
            raise InvalidRequest(f"{name!r}: {rule}", f"{place}.name")
        if tool_format.has_messages and not _NAME_IN_HEAD.fullmatch(name):
            raise InvalidRequest(f"{name!r}: white space and < end the name in this model's calls", f"{place}.name")
        if tool_use.choice in ("auto", "required", f"function:{name}"):
            place += ".parameters"
            offered.append((name, _arguments_schema(function, place, prepare_schema), place))
    return offered


def _arguments_schema(function: Mapping[str, Any], place: str, prepare_schema: PrepareSchema) -> dict[str, Any]:
    """Return the schema to embed, which is always of an object.

    In OpenAI's API a tool without parameters has no schema, or an object's with empty properties. In JSON Schema the
    latter would allow any object.
    """
    parameters = function.get("parameters")
    if parameters is None:
        parameters = {}
    if not isinstance(parameters, Mapping):
        raise InvalidRequest("expected a JSON schema of an object", place)
    types = parameters.get("type", "object")
    if "object" not in (types if isinstance(types, list) else [types]):
        raise InvalidRequest(f"{types!r}: arguments are an object", f"{place}.type")
    rules = {
        key: rule for key, rule in parameters.items() if key not in _ANNOTATIONS and (key, rule) != ("required", [])
    }
    has_none = rules in ({}, {"properties": {}}, {"type": "object", "properties": {}})
    typed = {key: rule for key, rule in parameters.items() if key != "nullable"} | {"type": "object"}
    arguments = _NO_PARAMETERS if has_none else typed
    return prepare_schema(arguments, place, bool(function.get("strict")))
