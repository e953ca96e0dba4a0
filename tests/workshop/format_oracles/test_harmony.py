"""The library of gpt-oss's authors as an oracle: it parses completions and renders conversations as our path does.

Where they differ, and why:

- The model's template, which we render, writes arguments and results as JSON, instructions with an empty line behind
  them, the type of arguments without a marker, and a comma behind a default value. For nested objects and tools without
  a description it writes other white space. It is the template that the model's providers serve, so we keep it.
- While a result awaits its answer, the library keeps the thinking of all turns; the template that behind the last
  answer.
- A text before a call is thinking for the template, and a message for the library: a template cannot tell them apart.
- The library refuses a completion without a head, or cut within one. A client wants its text all the same.
"""

from __future__ import annotations

import base64
import datetime
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.output_parser.deltas import ArgumentsDelta, CallBegin, ReasoningDelta, TextDelta
from frontend.output_parser.messages import output_parser
from model_repository.contract.output import GenerationChunk
from model_repository.contract.request import ChatPrompt, Thinking, ToolUse
from model_repository.reasoning_formats import HARMONY_TOKENS, REASONING_FORMATS
from model_repository.tokenizer.chat_prompt import ChatEncoder
from model_repository.tokenizer.vocabulary import Vocabulary
from tests.model_repository.engine.test_thinking import generated
from tests.model_repository.tokenizer.models import byte_level, files

library: Any = pytest.importorskip("openai_harmony", reason="needs openai-harmony: see README.md here")
if not {"TIKTOKEN_ENCODINGS_BASE", "GPT_OSS_TEMPLATE"} <= os.environ.keys():
    pytest.skip("needs gpt-oss's vocabulary and template: see README.md here", allow_module_level=True)
ENCODING = library.load_harmony_encoding(library.HarmonyEncodingName.HARMONY_GPT_OSS)
TEMPLATE = Path(os.environ["GPT_OSS_TEMPLATE"]).read_text(encoding="utf-8")
RANKS = (Path(os.environ["TIKTOKEN_ENCODINGS_BASE"]) / "o200k_base.tiktoken").read_bytes().splitlines()
BYTES = {int(rank): base64.b64decode(token) for token, rank in map(bytes.split, RANKS)}
FORMAT = REASONING_FORMATS["harmony"]

type Separated = tuple[str, str, list[tuple[str, str]]]  # thinking, content, and calls with their arguments


# --- completions ------------------------------------------------------------------------------------------------------


def parsed(completion: str) -> Separated:
    """Return the parts of a completion, by our engine and parser from the model's own tokens."""
    token_ids = ENCODING.encode(completion, allowed_special="all")
    pieces = [BYTES.get(token_id) or ENCODING.decode_utf8([token_id]).encode() for token_id in token_ids]
    parser, thinking, content = output_parser("harmony", FORMAT), "", ""
    calls: list[tuple[str, str]] = []
    for delta in generated(pieces, Thinking(FORMAT, False)):
        data = b"".join(pieces[token_id] for token_id in delta.token_ids)
        chunk = GenerationChunk(text=data.decode(), finish_reason=delta.finish_reason)  # the parser reads all heads
        for each in parser.read(chunk):
            match each:
                case ReasoningDelta(text):
                    thinking += text
                case TextDelta(text):
                    content += text
                case CallBegin(_, name):
                    calls.append((name, ""))
                case ArgumentsDelta(_, text):
                    calls[-1] = (calls[-1][0], calls[-1][1] + text)
    return thinking, content, calls


def expected(completion: str) -> Separated:
    """Return the parts by the library; as in our path, an empty line joins texts, without white space around them."""
    token_ids = ENCODING.encode(completion, allowed_special="all")
    texts: dict[bool, list[str]] = {True: [], False: []}
    calls = []
    for message in ENCODING.parse_messages_from_completion_tokens(token_ids, library.Role.ASSISTANT):
        text = message.content[0].text
        if (message.recipient or "").startswith("functions."):
            calls.append((message.recipient.removeprefix("functions."), text))
        elif text.strip(" \t\r\n"):
            texts[message.channel == "analysis"].append(text.strip(" \t\r\n"))
    return "\n\n".join(texts[True]), "\n\n".join(texts[False]), calls


ANALYSIS, PREAMBLE, FINAL = (f"<|channel|>{name}<|message|>" for name in ("analysis", "commentary", "final"))
NEXT = "<|end|><|start|>assistant"
CALLS = [
    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.get_weather<|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.get_weather json<|message|>",
    "<|channel|>commentary to=functions.get_weather<|message|>",
    " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>",
    " to=functions.get_weather<|channel|>commentary json<|message|>",
    " to=functions.get_weather<|channel|>analysis code<|message|>",
]
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=20).filter(
    lambda text: "<|" not in text and text.strip() == text
)
ARGUMENTS = st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers(), max_size=2).map(json.dumps)


@settings(max_examples=300)
@given(
    lead=st.lists(st.tuples(st.sampled_from([ANALYSIS, PREAMBLE]), TEXTS), max_size=3),
    last=st.tuples(st.sampled_from([FINAL, PREAMBLE, ANALYSIS]), TEXTS) | st.tuples(st.sampled_from(CALLS), ARGUMENTS),
)
def test_completions_are_parsed_alike(lead: list[tuple[str, str]], last: tuple[str, str]) -> None:
    completion = NEXT.join(head + text for head, text in [*lead, last])
    assert parsed(completion) == expected(completion)


# --- prompts ----------------------------------------------------------------------------------------------------------

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "The city"},
        "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
        "days": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Gets it.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now", "description": "The time."}},
]
SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rain? 🙂 <|end|>"}
CALL = {"id": "x", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
CALLING = {"role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "x", "content": '{"t": 1}'}
ANSWER = {"role": "assistant", "content": "Sun.", "thinking": "Clear."}


def prompt(messages: Sequence[dict[str, Any]], tools: Sequence[Any], effort: str) -> str:
    """Return the text of our prompt."""
    model = files(byte_level([*HARMONY_TOKENS, "<|call|>", "<|return|>"]), TEMPLATE)
    tool_use = ToolUse(tools=tuple(tools)) if tools else None
    chat = ChatPrompt(tuple(messages), tool_use=tool_use, template_kwargs={"reasoning_effort": effort})
    token_ids, _ = ChatEncoder(model, Vocabulary(model.tokenizer), "harmony", "harmony").encode(chat)
    return str(model.tokenizer.decode(token_ids, skip_special_tokens=False))


def prompt_of_library(messages: Sequence[dict[str, Any]], tools: Sequence[Any], effort: str) -> str:
    """Return the text of the library's prompt, with what only the template writes."""
    role, new = library.Role, library.Message.from_role_and_content
    system = library.SystemContent.new().with_reasoning_effort(library.ReasoningEffort(effort.capitalize()))
    written = [new(role.SYSTEM, system.with_conversation_start_date(f"{datetime.date.today()}"))]
    developer = library.DeveloperContent.new()
    if messages[0] is SYSTEM:
        developer = developer.with_instructions("Be brief." if tools else "Be brief.\n\n")
        messages = messages[1:]
    if tools:
        functions = [tool["function"] for tool in tools]
        described = [(each["name"], each["description"], each.get("parameters")) for each in functions]
        developer = developer.with_function_tools([library.ToolDescription.new(*each) for each in described])
    if developer != library.DeveloperContent.new():
        written.append(new(role.DEVELOPER, developer))
    for message in messages:
        content = message["content"]
        if message["role"] == "user":
            written.append(new(role.USER, content))
        elif message["role"] == "tool":
            author = library.Author.new(role.TOOL, "functions.get_weather")
            result = library.Message.from_author_and_content(author, json.dumps(content))
            written.append(result.with_channel("commentary").with_recipient("assistant"))
        else:
            written.append(new(role.ASSISTANT, message["thinking"]).with_channel("analysis"))
            for call in message.get("tool_calls", ()):
                arguments = new(role.ASSISTANT, call["function"]["arguments"]).with_channel("commentary")
                written.append(arguments.with_recipient("functions.get_weather").with_content_type("json"))
            if content:
                written.append(new(role.ASSISTANT, content).with_channel("final"))
    conversation = library.Conversation.from_messages(written)
    text = str(ENCODING.decode_utf8(ENCODING.render_conversation_for_completion(conversation, role.ASSISTANT)))
    return text.replace("// default: c\n", "// default: c,\n")


@pytest.mark.parametrize("effort", ["low", "medium", "high"])
@pytest.mark.parametrize("tools", [[], TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [SYSTEM, USER],
        [USER, ANSWER, USER],
        [USER, CALLING, RESULT],
        [USER, CALLING, RESULT, CALLING, RESULT],
        [SYSTEM, USER, CALLING, RESULT, ANSWER, USER],
    ],
)
def test_prompts_are_rendered_alike(messages: list[dict[str, Any]], tools: list[Any], effort: str) -> None:
    assert prompt(messages, tools, effort) == prompt_of_library(messages, tools, effort)
