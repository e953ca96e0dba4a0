"""Chats. The model thinks before their last answer."""

import random
from collections.abc import Iterator
from dataclasses import replace

from tests.workshop.demo_training.conversation import (
    Document,
    chat_document,
    draw_chat,
    draw_tool_chat,
    until_last_call,
)
from tests.workshop.demo_training.skills import Chat, ToolUse
from tests.workshop.demo_training.style import Style

CALL_SHARE = 0.8  # of the answers with tools: the thought is before the call, and not behind its result
CUT_SHARE = 0.15  # of the thoughts, as a budget cuts them


def thought_of_call(use: ToolUse) -> str:
    return f"The tool {use.tool.name} answers this" + (", in two calls." if len(use.calls) > 1 else ".")


def thinking(chat: Chat, style: Style) -> Document:
    """Write a chat with a thought before its last answer or call."""
    document, last = chat_document(chat, style), chat.exchanges[-1]
    thought = last.thought
    if last.use and chat.rng.random() < CALL_SHARE:
        document, thought = until_last_call(document), thought_of_call(last.use)
    if chat.rng.random() >= CUT_SHARE:
        return replace(document, thought=thought)
    words = thought.split(" ")
    cut = " ".join(words[: chat.rng.randrange(1, len(words))])
    return replace(document, thought=cut, is_thought_cut=True)


def thinking_stream(seed: int) -> Iterator[Document]:
    rng = random.Random(seed)
    while True:
        yield rng.choices((draw_chat, draw_tool_chat), (56, 20))[0](rng, thinking)
