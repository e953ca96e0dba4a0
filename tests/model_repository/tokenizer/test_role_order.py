"""Conversations in the orders of roles that templates take, with templates that have the rules of real ones."""

from __future__ import annotations

from typing import Any

import pytest

from model_repository.tokenizer.chat_template import ChatTemplate
from model_repository.tokenizer.role_order import RoleOrder

WRITTEN = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
# Qwen3.5's rule.
FIRST = (
    """{% for message in messages %}{% if message.role == "system" and not loop.first %}
{{ raise_exception("System message must be at the beginning.") }}{% endif %}{% endfor %}"""
    + WRITTEN
)
# gpt-oss's: others than the first are left out.
ONLY_FIRST = """{% for message in messages %}{% if loop.first or message.role not in ("system", "developer") %}
<{{ message.role }}>{{ message.content }}{% endif %}{% endfor %}"""
# Gemma 2's, without a role for instructions.
GEMMA = """{% if messages[0].role == "system" %}{{ raise_exception("System role not supported") }}{% endif %}
{% for message in messages %}{% if (message.role == "user") != (loop.index0 % 2 == 0) %}
{{ raise_exception("roles must alternate") }}{% endif %}{{ message.content }}{% endfor %}"""
# Mistral's: calls and results do not count.
MISTRAL = (
    """{% set rest = messages[1:] if messages[0].role == "system" else messages %}{% set ns = namespace(at=0) %}
{% for message in rest %}{% if message.role in ("user", "assistant") and not message.tool_calls %}
{% if (message.role == "user") != (ns.at % 2 == 0) %}{{ raise_exception("roles must alternate") }}{% endif %}
{% set ns.at = ns.at + 1 %}{% elif message.role == "system" %}{{ raise_exception("unexpected role") }}{% endif %}
{% endfor %}"""
    + WRITTEN
)
# FunctionGemma's name.
DEVELOPER = """{% for message in messages if message.role in ("developer", "user", "assistant") %}
<{{ message.role }}>{{ message.content }}{% endfor %}"""
BOTH = (
    WRITTEN + "{% if messages[0].role not in ('system', 'developer', 'user') %}{{ raise_exception('no') }}{% endif %}"
)
NEEDS_TOOLS = "{% if not tools %}{{ raise_exception('no tools') }}{% endif %}" + FIRST

CALL = {"id": "123456789", "type": "function", "function": {"name": "f", "arguments": {}}}
KINDS = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "c": "assistant", "t": "tool", "x": "document"}


def conversation(letters: str) -> list[dict[str, Any]]:
    """Return a message for each letter: `c` calls a tool; its number is its content."""
    return [
        {"role": KINDS[letter], "content": str(number)} | ({"tool_calls": [CALL]} if letter == "c" else {})
        for number, letter in enumerate(letters)
    ]


def order_of(messages: list[dict[str, Any]]) -> str:
    """Return the letters of messages with their contents."""
    letters = {role: letter for letter, role in KINDS.items() if letter != "c"}
    return " ".join(
        ("c" if "tool_calls" in each else letters[each["role"]]) + each["content"].replace("\n\n", "+")
        for each in messages
    )


@pytest.mark.parametrize(
    ("source", "letters", "expected"),
    [
        # Instructions before the conversation.
        (FIRST, "ssu", "s0+1 u2"),
        (FIRST, "sdu", "s0+1 u2"),
        (FIRST, "ssssu", "s0+1+2+3 u4"),
        (FIRST, "su", "s0 u1"),
        (ONLY_FIRST, "ssu", "s0+1 u2"),
        (WRITTEN, "ssu", "s0 s1 u2"),
        (GEMMA, "ssuau", "u0+1+2 a3 u4"),
        (GEMMA, "sau", "u0 a1 u2"),
        (GEMMA, "s", "u0"),
        (MISTRAL, "ssua", "s0+1 u2 a3"),
        # Later ones.
        (FIRST, "susu", "s0 u1 u2+3"),
        (FIRST, "suas", "s0 u1 a2 u3"),
        (FIRST, "usa", "u0 u1 a2"),
        (FIRST, "uddu", "u0 u1+2+3"),
        (FIRST, "ucstu", "u0 c1 t3 u2+4"),
        (FIRST, "ucsta", "u0 c1 t3 u2 a4"),
        (ONLY_FIRST, "suasu", "s0 u1 a2 u3+4"),
        (WRITTEN, "suasu", "s0 u1 a2 s3 u4"),
        (WRITTEN, "ucstsu", "u0 c1 s2 t3 s4 u5"),
        (MISTRAL, "susua", "s0 u1+2+3 a4"),
        # The name of a developer.
        (WRITTEN, "du", "s0 u1"),
        (WRITTEN, "udu", "u0 s1 u2"),
        (BOTH, "du", "d0 u1"),
        (BOTH, "sdudu", "s0 d1 u2 d3 u4"),
        (DEVELOPER, "su", "d0 u1"),
        # Other rules.
        (GEMMA, "uuau", "u0+1 a2 u3"),
        (GEMMA, "uaau", "u0 a1+2 u3"),
        (GEMMA, "au", "u a0 u1"),
        (WRITTEN, "auuaa", "a0 u1 u2 a3 a4"),
        (MISTRAL, "uctu", "u0 c1 t2+3"),
        (MISTRAL, "sauaac", "s0 u a1 u2 a3+4 c5"),
        (WRITTEN, "uctctu", "u0 c1 t2 c3 t4 u5"),
        # Templates that a trial cannot know, and conversations of others than chats.
        (NEEDS_TOOLS, "ssu", "s0 s1 u2"),
        (FIRST, "ssx", "s0 s1 x2"),
    ],
)
def test_a_conversation_gets_an_order_that_the_template_takes(source: str, letters: str, expected: str) -> None:
    assert order_of(RoleOrder(ChatTemplate(source, {})).rewritten(conversation(letters))) == expected


def test_an_order_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    template = ChatTemplate(FIRST, {})
    order, render, num_rendered = RoleOrder(template), template.render, 0

    def counted(*args: Any, **kwargs: Any) -> str:
        nonlocal num_rendered
        num_rendered += 1
        return render(*args, **kwargs)

    monkeypatch.setattr(template, "render", counted)
    order.rewritten(conversation("sdusuctu"))
    num_tried = num_rendered
    assert num_tried > 0
    order.rewritten(conversation("sdusuctu" * 2))
    order.rewritten(conversation("sdusuctu"))
    num_known = num_rendered
    order.rewritten(conversation("sdusuctu" * 100))
    assert num_rendered == num_known
