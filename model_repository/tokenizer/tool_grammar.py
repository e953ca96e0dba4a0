"""The grammar of a whole answer with tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from model_repository.contract.request import ToolUse
from model_repository.errors import InvalidRequest
from model_repository.notations import NAME, Notation
from model_repository.tokenizer.argument_grammar import ArgumentGrammar, in_slashes, literal
from model_repository.tool_formats import ToolFormat

MAX_CALLS = 16  # calls of one answer: a repetitive model should end before max_tokens

# A name stands in JSON strings and on separate lines, without escapes.
_NAME = re.compile(r'[^"\\\x00-\x1f\x7f\ud800-\udfff]{1,256}')
_NAME_IN_HEAD = re.compile(r"[^\s<]+")
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_ANNOTATIONS = ("$schema", "title", "description")
_WHITE = r"[ \t\r\n]*"
_AROUND = re.compile(r" ?([\[{:,]) ?")

type _Tool = tuple[str, dict[str, Any], str]  # name, schema and the schema's place
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
    is_free = tool_use.choice == "auto" and content is None
    rules: list[str] = []
    calls: dict[Notation | None, _Calls] = {}
    forms = []
    for number, each in enumerate([tool_format, *(tool_format.other_forms if is_free else ())]):
        if each.notation not in calls:
            calls[each.notation] = _Calls(f"call_{len(calls)}", tools, each, rules)
        forms.append(_Form(each, number, calls[each.notation], is_repeatable=is_repeatable))
        rules.append(forms[-1].more())
    first_call = forms[0].first_call()
    if tool_format.has_messages:
        start = _messages(first_call, content, is_forced=tool_use.choice != "auto")
    elif is_free:
        start = _free_start(forms)
    elif content is not None and tool_use.choice == "auto":
        start = [f"start: content | {first_call} more_0", f"content: {content}"]
    else:
        start = [f"start: {first_call} more_0"]
    return "\n".join([*start, *rules]) + "\n"


class _Calls:
    """The rules of calls from the name on, which the forms with the same arguments share.

    Args:
        rule: their name.
        rules: get them.
    """

    def __init__(self, rule: str, tools: Sequence[_Tool], tool_format: ToolFormat, rules: list[str]) -> None:
        self.rule = rule
        self.names = [name for name, _, _ in tools]
        if tool_format.notation is None:
            rules += [f"arguments_{number}: %json {json.dumps(schema)}" for number, (_, schema, _) in enumerate(tools)]
            self.arguments = [f"arguments_{number}" for number in range(len(tools))]
        else:
            grammar = ArgumentGrammar(tool_format.notation)
            self.arguments = [grammar.arguments(schema, place) for _, schema, place in tools]
            rules += grammar.rules
        number_rule = ""
        if tool_format.before_number:
            rules.append(f"NUMBER: /[0-9]{{{tool_format.num_digits},5}}/")
            number_rule = f"{literal(tool_format.before_number)} NUMBER "
        before_arguments = literal(tool_format.before_arguments)
        if tool_format.has_messages:  # the model writes both
            before_arguments = f'" "? {literal(tool_format.before_arguments.removeprefix(" "))}'
        for number, (name, each) in enumerate(zip(self.names, self.arguments, strict=True)):
            rules.append(f"{rule}_{number}: {literal(name)} {number_rule}{before_arguments} {each}")
        alternatives = " | ".join(f"{rule}_{number}" for number in range(len(tools)))
        rules.append(f"{rule}: ({alternatives}) {literal(tool_format.after_arguments)}")

    def behind(self, before_name: str, before_arguments: str) -> str:
        """Return the expression of calls whose heads are one literal each."""
        heads = (literal(f"{before_name}{name}{before_arguments}") for name in self.names)
        return " | ".join(f"{head} {each}" for head, each in zip(heads, self.arguments, strict=True))


@dataclass(frozen=True, slots=True)
class _Form:
    """The rules of calls in one form."""

    format: ToolFormat
    number: int
    calls: _Calls
    _: KW_ONLY
    is_repeatable: bool

    def more(self) -> str:
        """Return the rule of what follows the first call."""
        each = self.format
        next_call = f"{literal(each.between_calls + each.before_name)} {self.calls.rule}"
        more = f"({next_call}){{0,{MAX_CALLS - 1}}}" if self.is_repeatable else ""
        return f"more_{self.number}: {more} {literal(each.after_calls)}"

    def first_call(self) -> str:
        each = self.format
        opening = each.before_calls + each.before_name
        if each.trigger or each.has_messages:
            first_call = f"{literal(opening)} {self.calls.rule}"
        else:
            # The opening alone may begin a text, so the lexer must not end there.
            firsts = self.calls.behind(opening, each.before_arguments)
            first_call = f"({firsts}) {literal(each.after_arguments)}"
        if each.other_before_name:
            first_call = f"({first_call} | {self.calls.behind(each.other_before_name, each.other_before_arguments)})"
        return first_call

    def triggered(self) -> tuple[str, str]:
        """Return a rule, and the expression of text with a first call behind it.

        `head` is lazy and ends at the first trigger, so text behind a trigger never matches TEXT.
        """
        each, number = self.format, self.number
        lead = "TEXT" if each.is_trigger_special else r"/((.|\n)*\n)?/"
        opening = (each.before_calls + each.before_name).removeprefix(each.trigger)
        rule = f"head_{number}[lazy]: {lead} {literal(each.trigger)}"
        return rule, f"head_{number} {literal(opening)} {self.calls.rule}"

    def beginning(self) -> str:
        """Return the expression of a beginning of calls without a trigger."""
        each = self.format
        if each.notation is not None:
            name = NAME.replace("/", r"\x2f")
            return f"{re.escape(each.before_calls)}{name}{re.escape(each.before_arguments)}"
        opening = _AROUND.sub(rf"{_WHITE}\\\1{_WHITE}", each.before_calls + each.before_name)
        return f'{opening}({"|".join(map(in_slashes, map(re.escape, self.calls.names)))})"'


def _free_start(forms: Sequence[_Form]) -> list[str]:
    """Return the rules of a text, or of a text up to calls and the calls."""
    rules, starts, beginnings = [], ["TEXT"], []
    for form in forms:
        prefix = form.format.answer_prefix
        if form.format.trigger:
            head, first_call = form.triggered()
            rules.append(head)
        else:
            first_call = f"{literal(prefix) + '? ' if prefix else ''}{form.first_call()}"
            beginnings.append(rf"{_WHITE}{form.beginning()}(.|\n)*")
            beginnings += [rf"(.|\n)*{re.escape(prefix)}(.|\n)*"] if prefix else []
        starts.append(f"{first_call} more_{form.number}")
    text = "".join(f" & ~/{each}/" for each in dict.fromkeys(beginnings))
    return [f"start: {' | '.join(starts)}", *rules, rf"TEXT: /(.|\n)*/{text}"]


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


def _offered_tools(tool_use: ToolUse, tool_format: ToolFormat, prepare_schema: PrepareSchema) -> list[_Tool]:
    """Return the tools that may be called."""
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
