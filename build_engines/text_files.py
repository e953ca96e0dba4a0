"""The files of an artifact for tokenizing and detokenizing: the tokenizer and the byte table."""

from __future__ import annotations

import json
import re
import secrets
import shutil
from pathlib import Path
from typing import Any

import jinja2

from build_engines.checkpoint import TOKENIZER_FILES, read_chat_templates
from build_engines.errors import BuildError
from build_engines.json_files import read_json
from build_engines.vocabulary import token_bytes
from model_repository.byte_table import FILE_NAME as BYTE_TABLE
from model_repository.byte_table import save_byte_table
from model_repository.errors import InvalidRequest
from model_repository.model_parameters import REASONING_FIELDS, THINKING_FIELD
from model_repository.reasoning_formats import REASONING_FORMATS, detect_reasoning_format
from model_repository.tokenizer.chat_prompt import messages_for_template, writes_tools
from model_repository.tokenizer.chat_template import SPECIAL_TOKEN_NAMES, ChatTemplate
from model_repository.tokenizer.prompt import PromptEncoder
from model_repository.tokenizer.token_text import TokenText
from model_repository.tokenizer.tokenizer_files import TokenizerFiles
from model_repository.tokenizer.tool_messages import messages_with_history_ids
from model_repository.tool_formats import HARMONY, PLAIN, TOOL_FORMATS, detect_tool_format

_CHAT_TEMPLATE = "chat_template.jinja"
_CALL_TAG = re.compile(r"<[^\s<>{}'\"]*(?:call|invoke|function)[^\s<>{}'\"]*>", re.IGNORECASE)
_THINKING_END = re.compile(r"</[^\s<>{}'\"]*think[^\s<>{}'\"]*>", re.IGNORECASE)
_CALL: dict[str, Any] = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {}}}
_CALLING: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [_CALL]}


def write_text_files(
    source: Path, folder: Path, vocab_size: int, tool_call_format: str, chat_template: str | None = None
) -> None:
    """Copy a checkpoint's tokenizer into an artifact and compute the bytes of its tokens.

    Args:
        source: the folder with tokenizer.json.
        folder: the artifact.
        vocab_size: rows of the model's output.
        tool_call_format: its special tokens are text, and those around the model's thinking.
        chat_template: replaces that of the checkpoint.

    Raises:
        BuildError: a file is malformed.
    """
    (folder / "tokenizer").mkdir()
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / "tokenizer" / name)
    if chat_template is not None:
        (folder / "tokenizer" / _CHAT_TEMPLATE).write_text(chat_template, encoding="utf-8")
    reasoning_format = detected_reasoning_format(folder / "tokenizer")
    visible = TOOL_FORMATS[tool_call_format].special_tokens
    if reasoning_format:
        each = REASONING_FORMATS[reasoning_format]
        if each.head and tool_call_format != HARMONY.name:
            raise BuildError(f"--tool-call-format {tool_call_format}: this model's messages have heads: {HARMONY.name}")
        visible += each.special_tokens
    try:  # the stages load the same
        files = TokenizerFiles.load(folder / "tokenizer")
        last = max(files.tokenizer.get_vocab(with_added_tokens=False).values(), default=0)
        if last >= vocab_size:
            rule = f"the model has tokens 0 to {vocab_size - 1}: the tokenizer is another model's"
            raise BuildError(f"{source / 'tokenizer.json'}: has token {last}; {rule}")
        table = token_bytes(read_json(source / "tokenizer.json"), vocab_size, visible)
        PromptEncoder(files, table, tool_call_format, reasoning_format)
        TokenText(files.tokenizer, table)
    except BuildError:
        raise
    except Exception as exc:  # the class of errors of `tokenizers`
        raise BuildError(f"{source}: its tokenizer does not load: {type(exc).__name__}: {exc}") from exc
    save_byte_table(folder / BYTE_TABLE, table)


def template_fields(folder: Path) -> tuple[str, ...]:
    """Return what the chat templates of a tokenizer's folder read: see `ModelParameters.template_fields`."""
    fields: set[str] = set()
    for source in read_chat_templates(folder).values():
        template = ChatTemplate(source, dict.fromkeys(SPECIAL_TOKEN_NAMES, ""))
        if template.fault:
            continue
        words = {word.strip("'\"") for _, kind, word in jinja2.Environment().lex(source) if kind != "data"}
        fields |= template.variables - template.own_names | words & set(REASONING_FIELDS)
        fields |= {"name"} if _writes_names(template) else set()
        fields |= {THINKING_FIELD} if _writes_thinking(template) else set()
    return tuple(sorted(fields))


def _writes_names(template: ChatTemplate) -> bool:
    """Whether the names of messages reach the prompt, in any role."""
    named = {"content": "a", "name": (mark := secrets.token_hex())}
    system, user, assistant, tool = ({"role": role, **named} for role in ("system", "user", "assistant", "tool"))
    chats = ([system, user], [user, assistant, user], [user, _CALLING, tool | {"tool_call_id": _CALL["id"]}])
    return any(template.writes(mark, messages) for messages in chats)  # some templates refuse some roles


def _writes_thinking(template: ChatTemplate) -> bool:
    """Whether a field `thinking` of a message reaches the prompt, as the thinking before a call does."""
    mark = secrets.token_hex()
    result = {"role": "tool", "content": "a", "tool_call_id": _CALL["id"]}
    return template.writes(mark, [{"role": "user", "content": "a"}, {**_CALLING, "thinking": mark}, result]) is True


def broken_template(folder: Path) -> str | None:
    """Return why a chat template of a tokenizer's folder does not compile; None if all do."""
    faults = (ChatTemplate(source, {}).fault for source in read_chat_templates(folder).values())
    return next(filter(None, faults), None)


def detected_tool_call_format(folder: Path) -> str:
    """Return the tool-call format of the chat templates in a tokenizer's folder; `plain` for an unknown one.

    The format that a template's marks suggest must be that of a call that it writes, if it writes any.
    """
    source = _tool_template(folder)
    suggested, template = detect_tool_format(source), ChatTemplate(source, dict.fromkeys(SPECIAL_TOKEN_NAMES, ""))
    formats = sorted(TOOL_FORMATS.values(), key=lambda each: each.name != suggested)  # the suggested one first
    name, key = (f"f{secrets.token_hex()}" for _ in range(2))
    texts = {each: _written_call(template, each, name, key) for each in {each.history_id for each in formats}}
    loosely = PLAIN.name
    for tool_format in formats:
        text = texts[tool_format.history_id]
        for head in tool_format.call_heads(name, key) if tool_format is not PLAIN else ():
            if head in text:
                return tool_format.name
            if loosely == PLAIN.name and "".join(head.split()) in "".join(text.split()):
                loosely = tool_format.name
    return loosely if any(name in text for text in texts.values()) else suggested


def _written_call(template: ChatTemplate, history_id: str, name: str, key: str) -> str:
    """Return a conversation with a call; `history_id` is the form of its id, see ToolFormat. Empty: it is refused."""
    function = {"name": name, "arguments": json.dumps({key: "a"})}
    calling = {"role": "assistant", "content": "", "tool_calls": [{**_CALL, "function": function}]}
    messages = messages_for_template([{"role": "user", "content": "a"}, calling])
    if history_id:
        messages = messages_with_history_ids(messages, history_id)
    try:
        return template.render({"messages": messages, "tools": None}, add_generation_prompt=False)
    except InvalidRequest:
        return ""


def unknown_marks(folder: Path) -> dict[str, str]:
    """Return texts of the chat templates in a tokenizer's folder that no known format has: of tool calls, of thinking.

    The text of calls is empty if the template takes tools, but has no mark of a call.
    """
    templates, marks = read_chat_templates(folder), {}
    source = _tool_template(folder)
    template = ChatTemplate(source, dict.fromkeys(SPECIAL_TOKEN_NAMES, ""))
    if detected_tool_call_format(folder) == PLAIN.name and writes_tools(template):
        name = f"f{secrets.token_hex()}"
        before, written, _ = _written_call(template, "", name, name).partition(name)
        tags = " ".join(dict.fromkeys(_CALL_TAG.findall(source)))
        marks["tool calls"] = before.splitlines()[-1].strip() if written and before.strip() else tags
    if not detected_reasoning_format(folder) and (found := _THINKING_END.findall("\n".join(templates.values()))):
        marks["thinking"] = " ".join(dict.fromkeys(found))
    return marks


def _tool_template(folder: Path) -> str:
    templates = read_chat_templates(folder)
    return templates.get("tool_use") or templates.get("default", "")


def detected_reasoning_format(folder: Path) -> str:
    """Return the reasoning format of the chat templates in a tokenizer's folder; empty: the model does not think."""
    return detect_reasoning_format("\n".join(read_chat_templates(folder).values()))
