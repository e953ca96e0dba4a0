"""The texts around models' thinking: one table for the build, the engine and the frontend."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

HARMONY_TOKENS = ("<|start|>", "<|end|>", "<|channel|>", "<|constrain|>", "<|message|>")
_START, _END, _CHANNEL, _CONSTRAIN, _MESSAGE = HARMONY_TOKENS


class ReasoningFormat(Struct, frozen=True, omit_defaults=True):
    """The markers of thinking. Both begin with the same character."""

    name: str
    begin: str  # written by the chat template, or by the model at the start of its completion
    end: str
    head: str = ""  # begins the head of a message with thinking, and no other head; empty: messages have no heads
    begin_text: str = ""  # end of the begin marker that is not in its token

    @property
    def begin_token(self) -> str:
        """The token of the begin marker, in vocabularies that have one."""
        return self.begin.removesuffix(self.begin_text)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Those that belong to the text of a completion."""
        return HARMONY_TOKENS if self.head else (self.begin_token, self.end)


REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    each.name: each
    for each in (
        # Source: the chat templates of Qwen3, DeepSeek-R1, GLM-4.5, MiniMax-M2 and Nemotron 3.
        ReasoningFormat("think", "<think>", "</think>"),
        # Source: the chat template of Magistral.
        ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
        # Source: the chat template of Gemma 4, in llama.cpp's models/templates.
        ReasoningFormat("gemma4", "<|channel>thought\n", "<channel|>", begin_text="thought\n"),
        # Source: the chat template of Seed-OSS.
        ReasoningFormat("seed", "<seed:think>", "</seed:think>"),
        # Source: the chat template of gpt-oss, and docs/format.md of openai/harmony.
        ReasoningFormat("harmony", f"{_CHANNEL}analysis{_MESSAGE}", _END, f"{_CHANNEL}a"),
    )
}


def detect_reasoning_format(chat_template: str) -> str:
    """Return the name of the format whose markers are in a chat template; empty: the model does not think."""
    for name, each in REASONING_FORMATS.items():
        if all(mark in chat_template for mark in ((_START, _CHANNEL) if each.head else (each.end,))):
            return name
    return ""


class MessageHead(NamedTuple):
    """The head of one of Harmony's messages: a completion is messages, the first of them without `<|start|>`."""

    size: int  # characters
    function: str | None  # that the message calls
    is_thinking: bool


# A recipient stands before or behind the channel. A type may follow it, with a marker or without. Only the last marker
# is in all heads.
_WORDS = "[^<]{0,300}+"
_MARK = f"(?:{re.escape(_CHANNEL)}|{re.escape(_CONSTRAIN)})"
_OPENING = f"(?:{re.escape(_START)}assistant)?"
_HEAD = re.compile(rf"{_OPENING}(?P<words>(?: to={_WORDS})?(?:{_MARK}{_WORDS}){{0,3}}){re.escape(_MESSAGE)}")
_HEAD_BEGINNING = re.compile(
    rf"{_OPENING}(?: ?| t| to| to={_WORDS})(?:{_MARK}{_WORDS}){{0,3}}(?:<(?:\|(?:[a-z]{{0,9}}\|?)?)?)?"
)
_FUNCTION = re.compile(r"\bto=functions\.([^\s<]+)")


def head_at(text: str) -> MessageHead | None:
    """Return the head of a message that a text begins with, if it does."""
    if (found := _HEAD.match(text)) is None:
        return None
    function = _FUNCTION.search(found["words"])
    is_thinking = function is None and f"{_CHANNEL}analysis" in found["words"]
    return MessageHead(found.end(), function and function[1], is_thinking)


def may_become_head(text: str) -> bool:
    """Whether a whole text may be the beginning of a message's head."""
    return f"{_START}assistant".startswith(text) or _HEAD_BEGINNING.fullmatch(text) is not None
