"""Which parts of a rendered prompt are the template's own tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from model_repository.errors import InvalidRequest
from model_repository.tokenizer.plain_text import MarkedText

ALL_MARKS = "".join(map(chr, range(0xFDD0, 0xFDF0)))


def protect(tokens: Sequence[str], messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], str | None]:
    """Return messages with their text marked, and the mark."""
    variables, mark = MarkedText(tokens).protect({"messages": messages})
    return variables["messages"], mark


def test_text_that_holds_every_mark_is_refused() -> None:
    """It was passed on unprotected."""
    with pytest.raises(InvalidRequest, match="U\\+FDD0 to U\\+FDEF"):
        protect(["<s>"], [{"role": "user", "content": ALL_MARKS + "<s>"}])


def test_text_that_holds_every_mark_and_nothing_special_is_served() -> None:
    messages = [{"role": "user", "content": ALL_MARKS}]
    assert protect(["<s>"], messages) == (messages, None)


def test_a_template_may_build_a_token_around_a_role() -> None:
    marked_text = MarkedText(["<|user|>", "<s>"])
    messages, mark = protect(["<|user|>", "<s>"], [{"role": "user", "content": "<s>"}])
    assert mark is not None
    assert [*marked_text.split(f"<|{messages[0]['role']}|>", mark)] == [("<|user|>", True)]


def test_tools_and_names_of_the_template_are_protected_too() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "ends <s>"}}]
    variables, mark = MarkedText(["<s>"]).protect({"messages": [], "tools": tools, "style": "<s>", "none": None})
    assert mark is not None
    assert "<s>" not in str(variables)
    assert [
        item.replace(mark, "") for item in (variables["style"], variables["tools"][0]["function"]["description"])
    ] == [
        "<s>",
        "ends <s>",
    ]
    assert variables["none"] is None


def test_a_name_in_a_tool_stays_unmarked_for_comparisons() -> None:
    """`string` lies inside of a token; marked, it was no longer the type of anything."""
    schema = {"type": "string", "enum": ["str ing", "string"], "required": ["string"]}
    variables, mark = MarkedText(["<|string|>", "<|str ing|>"]).protect({"messages": [], "tools": [schema]})
    assert variables["tools"] == [{"type": "string", "enum": [f"str ing{mark}", "string"], "required": ["string"]}]


def test_text_nested_too_deeply_is_refused() -> None:
    value: Any = "<s>"
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        MarkedText(["<s>"]).protect({"messages": [], "tools": value})


TOKENS = st.lists(st.text("<>ab", min_size=1, max_size=4), min_size=1, max_size=4, unique=True)
TEXT = st.text("<>ab", max_size=6)


@given(TOKENS, TEXT, TEXT, TEXT, TEXT)
@example(["<<a>", "<a>"], "", "x<<a>y", "", "")
@example(["ab", "bc"], "", "abc", "", "")
@example(["a"], "a", "bab", "a", "")
@example(["<a", "<a>"], "<a", ">b", "<a>", "")
def test_only_text_wholly_in_the_template_is_a_token(
    tokens: list[str], before: str, first: str, between: str, second: str
) -> None:
    marked_text = MarkedText(tokens)
    messages, mark = protect(tokens, [{"role": "x", "content": first}, {"role": "x", "content": second}])
    rendered = before + messages[0]["content"] + between + messages[1]["content"] + "."
    if mark is None:
        # Without marks no text of the user may touch a token.
        assert not _user_tokens(tokens, before, first, between, second)
        return
    found = list(marked_text.split(rendered, mark))
    assert "".join(text for text, _ in found) == before + first + between + second + "."
    owners = _owners(before, first, between, second)
    position = 0
    for text, is_token in found:
        if is_token:
            assert set(owners[position : position + len(text)]) == {"template"}, found
            assert text in tokens
        position += len(text)


def _owners(before: str, first: str, between: str, second: str) -> list[str]:
    pieces = ((before, "template"), (first, "user"), (between, "template"), (second, "user"), (".", "template"))
    return [owner for text, owner in pieces for _ in text]


def _user_tokens(tokens: Sequence[str], before: str, first: str, between: str, second: str) -> list[str]:
    rendered, owners = before + first + between + second + ".", _owners(before, first, between, second)
    return [
        token
        for token in tokens
        for start in range(len(rendered))
        if rendered.startswith(token, start) and "user" in owners[start : start + len(token)]
    ]
