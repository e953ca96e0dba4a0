"""The texts of models' tool calls: one table for the build, the constraint and the frontend's parser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


class RawArguments(dict[str, str]):
    """Arguments of a call that are not a JSON object, for example cut ones: `tojson` and `str` give the model's text.

    It is a dictionary for templates that iterate over arguments: the text has the empty name.
    """

    def __str__(self) -> str:
        return self[""]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """The text of an answer with tool calls: the parts around each call's name and arguments.

    The special tokens belong to that text. A vocabulary that has them renders and constrains them like other tokens.
    """

    name: str
    trigger: str  # begins calls after free text; empty: calls must begin the answer
    answer_prefix: str = ""  # may precede calls that begin the answer
    before_calls: str = ""
    before_name: str
    before_arguments: str
    after_arguments: str
    between_calls: str
    after_calls: str = ""
    special_tokens: tuple[str, ...]

    def calls_text(self, calls: Iterable[tuple[str, str]]) -> str:
        """Write calls, each a name and its arguments as JSON text, in this format."""
        texts = (
            f"{self.before_name}{name}{self.before_arguments}{arguments}{self.after_arguments}"
            for name, arguments in calls
        )
        return f"{self.before_calls}{self.between_calls.join(texts)}{self.after_calls}"


# Source: the chat templates of Qwen2.5 and Nous Hermes 2 Pro.
HERMES = ToolFormat(
    name="hermes",
    trigger="<tool_call>",
    before_name='<tool_call>\n{"name": "',
    before_arguments='", "arguments": ',
    after_arguments="}\n</tool_call>",
    between_calls="\n",
    special_tokens=("<tool_call>", "</tool_call>"),
)
# For a template without tools: `messages_with_plain_tools` describes them in words.
PLAIN = replace(HERMES, name="plain")
# Source: the chat templates of Llama 3.1 and 3.2; "; " between calls as in vLLM's parser of that name.
LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    trigger="",
    answer_prefix="<|python_tag|>",
    before_name='{"name": "',
    before_arguments='", "parameters": ',
    after_arguments="}",
    between_calls="; ",
    special_tokens=("<|python_tag|>",),
)
# These tokens contain U+FF5C and U+2581, which resemble a bar and an underscore.
_CALLS_BEGIN, _CALL_BEGIN, _SEP, _CALL_END, _CALLS_END = (
    f"<\uff5c{words.replace(' ', '\u2581')}\uff5c>"
    for words in ("tool calls begin", "tool call begin", "tool sep", "tool call end", "tool calls end")
)
# Source: the chat template of DeepSeek-V2.5, the same in V3.
DEEPSEEK = ToolFormat(
    name="deepseek",
    trigger=_CALLS_BEGIN,
    before_calls=_CALLS_BEGIN,
    before_name=f"{_CALL_BEGIN}function{_SEP}",
    before_arguments="\n```json\n",
    after_arguments=f"\n```{_CALL_END}",
    between_calls="\n",
    after_calls=_CALLS_END,
    special_tokens=(_CALLS_BEGIN, _CALL_BEGIN, _SEP, _CALL_END, _CALLS_END),
)
TOOL_FORMATS: Mapping[str, ToolFormat] = {
    tool_format.name: tool_format for tool_format in (HERMES, LLAMA3_JSON, DEEPSEEK, PLAIN)
}

_LLAMA3_MARKERS = re.compile(r'python_tag|\\?"parameters\\?"\s*:')


def detect_tool_format(chat_template: str) -> str:
    """Return the name of the format that a chat template teaches; `plain` for an unknown format."""
    if DEEPSEEK.trigger in chat_template:
        return DEEPSEEK.name
    if HERMES.trigger in chat_template:
        return HERMES.name
    if _LLAMA3_MARKERS.search(chat_template):
        return LLAMA3_JSON.name
    return PLAIN.name


def plain_tool_prompt(tools: Iterable[Mapping[str, Any]]) -> str:
    """Describe tools, OpenAI's objects, in words: for a model whose template has no tools."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = PLAIN.calls_text([("NAME", '{"KEY": VALUE}')])
    return (
        f"You can call these tools. Each line describes one, its parameters as a JSON schema:\n{listed}\n\n"
        f"To call a tool, answer with its name and its arguments in exactly this form:\n{example}\n"
        "For several calls write several such blocks. Results come back in <tool_response> blocks. "
        "When no tool is needed, answer in plain text."
    )


def messages_with_plain_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, has_system_role: bool = True
) -> list[dict[str, Any]]:
    """Rewrite a conversation with tools for a template without tools.

    The system message describes the tools; if the template refuses a system role, the first user text does. Calls
    become text of the assistant. Consecutive results and the next user text become one message of the user, since such
    templates often require that user and assistant alternate.
    """
    plain: list[dict[str, Any]] = []
    is_after_result = False
    for message in messages:
        content, is_result = message.get("content") or "", message["role"] == "tool"
        if is_result:
            content = f"<tool_response>\n{content}\n</tool_response>"
        if is_after_result and message["role"] in ("tool", "user"):
            plain[-1]["content"] += ("\n" if is_result else "\n\n") + content
        elif is_result:
            plain.append({"role": "user", "content": content})
        elif message.get("tool_calls"):
            rest = {key: value for key, value in message.items() if key not in ("content", "tool_calls")}
            calls = _calls_text(message["tool_calls"])
            plain.append({**rest, "content": f"{content}\n{calls}" if content else calls})
        else:
            plain.append(dict(message))
        is_after_result = is_result
    if tools:
        _describe(plain_tool_prompt(tools), plain, "system" if has_system_role else "user")
    return plain


def _describe(description: str, messages: list[dict[str, Any]], role: str) -> None:
    if role == "user":
        place = next((index for index, message in enumerate(messages) if message["role"] == "user"), None)
        texts = [description] if place is None else [description, messages[place]["content"]]
    else:
        place = 0 if messages and messages[0]["role"] in ("system", "developer") else None
        texts = [description] if place is None else [messages[place]["content"], description]
    content = "\n\n".join(filter(None, texts))
    if place is None:
        messages.insert(0, {"role": role, "content": content})
    else:
        messages[place] = {**messages[place], "content": content}


def _calls_text(tool_calls: Iterable[Mapping[str, Any]]) -> str:
    functions = [call["function"] for call in tool_calls]
    return PLAIN.calls_text((function["name"], _json_text(function["arguments"])) for function in functions)


def _json_text(arguments: Any) -> str:
    """Return arguments as JSON text: OpenAI's messages have them as text, a template's as an object."""
    return str(arguments) if isinstance(arguments, str | RawArguments) else json.dumps(arguments, ensure_ascii=False)
