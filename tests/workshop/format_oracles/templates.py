"""Real chat templates as oracles: does our detection name their format, and our parser read back their calls?"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from build_engines.text_files import detected_tool_call_format
from model_repository.errors import InvalidRequest
from model_repository.tokenizer.chat_prompt import messages_for_template
from model_repository.tokenizer.chat_template import ChatTemplate
from model_repository.tokenizer.tool_messages import messages_with_history_ids
from model_repository.tool_formats import TOOL_FORMATS
from tests.parsed_calls import parse_tool_calls
from tests.workshop.format_oracles.agreement import values

type Call = tuple[str, dict[str, Any]]

TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}
USER = {"role": "user", "content": "Is it raining in Oslo?"}
CONTENT = "I look it up."
CALLS: list[Call] = [
    ("get_weather", {"city": "Oslo", "days": 3, "is_daily": True, "where": {"list": [1, None]}}),
    ("find", {"text": 'a "b" <c>\n{d}'}),
]
SCHEMAS = [
    {
        "city": {"type": "string", "description": "A city."},
        "days": {"type": "integer", "description": "A number."},
        "is_daily": {"type": "boolean", "description": "A choice."},
        "where": {"type": "object", "description": "A place."},
    },
    {"text": {"type": "string", "description": "A text."}},
]
ARGUMENT_SCHEMAS = {
    name: {"type": "object", "properties": properties, "required": list(properties)}
    for (name, _), properties in zip(CALLS, SCHEMAS, strict=True)
}
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": schema}}
    for name, schema in ARGUMENT_SCHEMAS.items()
]
# `partly`: one call, or no content beside calls, as the template writes it. `no calls`: we write them for it.
OUTCOMES = ("read", "partly", "not read", "no calls", "refused")
ENDS = re.compile(
    r"\s*(<eos>|<\uff5c(?:end\u2581of\u2581sentence|Assistant)\uff5c>|<\|(?:im_end|eot_id|eom_id|eot|call|end_of_text|tool_response)\|?>|\[e~\[|<SPECIAL_12>)\s*\Z"
)


def answer(template: ChatTemplate, format_name: str, calls: Sequence[Call], content: str) -> str:
    """Return what the template writes for an answer with calls, without what is around answers."""
    functions = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls]
    tool_calls = [
        {"id": f"call_{number}", "type": "function", "function": function} for number, function in enumerate(functions)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": content}
    messages = messages_for_template([USER, {**message, "tool_calls": tool_calls}])
    if history_id := TOOL_FORMATS[format_name].history_id:
        messages = messages_with_history_ids(messages, history_id)
    prompt = template.render({"messages": [USER], "tools": TOOLS})
    text = template.render({"messages": messages, "tools": TOOLS}, add_generation_prompt=False)
    plain = template.render({"messages": [USER, {**message, "content": CONTENT}]}, add_generation_prompt=False)
    place = text.rfind(content) if content else -1
    if 0 <= place < text.rfind(calls[0][0]):
        text = text[place:]
    else:
        # An opened thinking ends the prompt, and not the answer of a conversation.
        prompt = re.sub(r"\s*<think>\s*\Z", "", prompt)
        pairs = enumerate(zip(prompt, text, strict=False))
        common = text[: next((place for place, (one, other) in pairs if one != other), len(prompt))]
        text = text[max(common.rfind("<"), 0) if common.rfind("<") > common.rfind(">") else len(common) :]
    # With a call in the conversation, some templates of Mistral write the user's question otherwise.
    text = text.rpartition("[/INST]")[2].removesuffix(plain.rpartition(CONTENT)[2])
    return ENDS.sub("", ENDS.sub("", text))


def result(source: str) -> tuple[str, str, str]:
    """Return three texts: the name of the format that we detect, one of `OUTCOMES`, and the text that was not read."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps({"chat_template": source}))
        name = detected_tool_call_format(Path(folder))
    template = ChatTemplate(source, TOKENS)
    fault = ("no calls", "")
    for calls in (CALLS, CALLS[:1]):
        for content in (CONTENT, ""):
            try:
                text = answer(template, name, calls, content)
            except InvalidRequest as exc:
                fault = ("refused", exc.text) if fault[0] == "no calls" else fault
                continue
            read_content, parsed = parse_tool_calls(name, text, schemas=ARGUMENT_SCHEMAS)
            read = values(read_content, [(call.name, call.arguments) for call in parsed if call.is_complete])
            if read == (content, calls):
                is_whole = (calls, content) == (CALLS, CONTENT)
                return name, "read" if is_whole else "partly", ""
            if calls[0][0] in text:
                fault = ("not read", text)
    return name, *fault


def results(folders: Sequence[str]) -> Iterator[tuple[str, str, str, str]]:
    """Return the name of each template in the folders, and its `result`."""
    for folder in folders:
        for path in sorted(Path(folder).glob("*.jinja")):
            yield path.stem.removeprefix("tool_chat_template_"), *result(path.read_text())


def table(folders: Sequence[str]) -> str:
    """Return the templates by format and outcome, in Markdown."""
    names: dict[tuple[str, str], list[str]] = {}
    for template, name, outcome, _ in results(folders):
        names.setdefault((name, outcome), []).append(template)
    rows = [
        f"| {name} | {' | '.join(', '.join(names.get((name, outcome), ())) for outcome in OUTCOMES)} |"
        for name in TOOL_FORMATS
        if any((name, outcome) in names for outcome in OUTCOMES)
    ]
    return "\n".join([f"| detected | {' | '.join(OUTCOMES)} |", "| --- " * (len(OUTCOMES) + 1) + "|", *rows]) + "\n"
