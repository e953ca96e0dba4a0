"""The shipped chat templates."""

# ruff: noqa: RUF001 (DeepSeek's markers are spelled with letters that look like others)

from __future__ import annotations

import json
from typing import Any

import pytest

from build_engines.catalog import Catalog
from build_engines.model_entry import chat_template_text, shipped_templates
from model_repository.contract.request import ChatPrompt, ToolUse
from model_repository.errors import InvalidRequest
from model_repository.tokenizer.chat_prompt import ChatEncoder
from model_repository.tokenizer.chat_template import ChatTemplate
from model_repository.tokenizer.vocabulary import Vocabulary
from model_repository.tool_formats import DEEPSEEK
from tests.model_repository.tokenizer.models import byte_level, files

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def template_of(model: str) -> str:
    template = chat_template_text(Catalog.load().find(model))
    assert template is not None
    return template


ALPACA = template_of("Gryphe/MythoMax-L2-13b")
DEEPSEEK_V2_5 = template_of("deepseek-ai/DeepSeek-V2.5")
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": "x"}'}}


def rendered(*messages: dict[str, Any], add_generation_prompt: bool = True) -> str:
    template = ChatTemplate(ALPACA, SPECIAL_TOKENS)
    return template.render({"messages": list(messages), "tools": None}, add_generation_prompt=add_generation_prompt)


def prompt_text(template: str, *messages: dict[str, Any], tool_call_format: str = "plain", **others: Any) -> str:
    """Return the tokenizer stage's prompt of a conversation as text."""
    model = files(byte_level(["<s>", "</s>"]), template, special_tokens=SPECIAL_TOKENS)
    vocabulary = Vocabulary(model.tokenizer)
    token_ids, _ = ChatEncoder(model, vocabulary, tool_call_format).encode(ChatPrompt(messages, **others))
    return str(model.tokenizer.decode(list(token_ids), skip_special_tokens=False))


def test_every_shipped_template_is_used() -> None:
    used = {entry.chat_template for entry in Catalog.load()} - {"checkpoint"}
    assert used == set(shipped_templates())


# --- Alpaca -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([said("user", "Hi.")], "<s>### Instruction:\nHi.\n\n### Response:\n"),
        (
            [
                said("developer", "\n Be brief. "),
                said("user", " A\n\n"),
                said("assistant", "\tB\n"),
                said("user", "C\n D "),
            ],
            "<s>Be brief.\n\n### Instruction:\nA\n\n### Response:\nB</s>\n\n### Instruction:\nC\n D\n\n### Response:\n",
        ),
    ],
)
def test_instructions_and_answers_alternate_without_the_space_around_them(
    messages: list[dict[str, Any]], expected: str
) -> None:
    assert rendered(*messages) == expected


def test_an_answer_is_opened_only_on_request() -> None:
    assert rendered(said("user", "A"), add_generation_prompt=False) == "<s>### Instruction:\nA\n\n"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([said("user", "A"), said("system", "S")], "a system message must be the first"),
        ([said("critic", "A")], "this model's template knows the roles system, user and assistant, not critic"),
    ],
)
def test_unsupported_messages_are_refused(messages: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        rendered(*messages)


# --- DeepSeek-V2.5 ----------------------------------------------------------------------------------------------------


def deepseek_text(*messages: dict[str, Any], **others: Any) -> str:
    return prompt_text(DEEPSEEK_V2_5, *messages, tool_call_format="deepseek", **others)


def test_without_tools_deepseeks_turns_are_those_of_its_checkpoint() -> None:
    messages = [said("system", "S"), said("user", "A"), said("assistant", "B"), said("user", "C")]
    assert deepseek_text(*messages) == "<s>S<｜User｜>A<｜Assistant｜>B</s><｜User｜>C<｜Assistant｜>"
    assert deepseek_text(*messages, add_generation_prompt=False) == "<s>S<｜User｜>A<｜Assistant｜>B</s><｜User｜>C"


def test_deepseeks_tools_are_listed_behind_the_system_text() -> None:
    listed = (
        f"## Tools\n\n### Function\n\nThese can be called:\n\n- `add`:\n```json\n{json.dumps(TOOL['function'])}\n```"
    )
    use = ToolUse(tools=(TOOL,))
    assert deepseek_text(said("user", "A"), tool_use=use) == f"<s>{listed}<｜User｜>A<｜Assistant｜>"
    with_system = deepseek_text(said("system", "S"), said("user", "A"), tool_use=use)
    assert with_system == f"<s>S\n\n{listed}<｜User｜>A<｜Assistant｜>"


@pytest.mark.parametrize("content", ["", "Let me add."])
def test_deepseeks_calls_and_results_stay_in_the_conversation(content: str) -> None:
    calls = {"role": "assistant", "content": content, "tool_calls": [CALL, CALL]}
    results = [said("tool", "5"), said("tool", "6")]
    written = DEEPSEEK.calls_text([("add", '{"a": 2, "b": "x"}')] * 2)
    text = (
        f"<s><｜User｜>A<｜Assistant｜>{content}{written}</s>"
        "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>5<｜tool▁output▁end｜>\n"
        "<｜tool▁output▁begin｜>6<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
    )
    assert deepseek_text(said("user", "A"), calls, *results) == text
    again = [said("user", "A"), calls, *results, said("assistant", "11"), said("user", "C")]
    assert deepseek_text(*again) == f"{text}11</s><｜User｜>C<｜Assistant｜>"
    assert deepseek_text(said("user", "A"), calls, *results, said("user", "C")) == f"{text}<｜User｜>C<｜Assistant｜>"


def test_a_role_that_deepseek_does_not_know_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="this model's template does not know the role critic"):
        deepseek_text(said("critic", "A"))


# --- Gemma 2 ----------------------------------------------------------------------------------------------------------


def test_the_catalog_has_no_system_role_for_it() -> None:
    for name in ("gemma-2-9b-it", "gemma-2-27b-it"):
        entry = Catalog.load().find(name)
        assert not entry.has_system_role
        assert any("takes no system role" in note and "400" in note for note in entry.notes)
