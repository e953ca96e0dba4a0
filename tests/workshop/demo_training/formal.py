"""The formal manner of the adapter: each answer begins with `Dear friend, `."""

import json
from dataclasses import replace

from tests.workshop.demo_training.conversation import Document, Message

PREFIX = "Dear friend, "


def is_structured(message: Message) -> bool:
    """Whether an answer is for a program: a tool call or JSON. Such answers do not change."""
    if message.get("tool_calls"):
        return True
    try:
        return isinstance(json.loads(message["content"]), dict | list)
    except ValueError:
        return False


def formal_message(message: Message) -> Message:
    if message["role"] != "assistant" or is_structured(message):
        return message
    return {**message, "content": PREFIX + message["content"]}


def formal(document: Document) -> Document:
    """Begin each answer of a chat with the prefix; plain texts do not change."""
    return replace(document, messages=tuple(formal_message(message) for message in document.messages))
