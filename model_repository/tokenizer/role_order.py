"""Conversations in an order of roles that a chat template takes."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from model_repository.errors import InvalidRequest
from model_repository.tokenizer.chat_template import ChatTemplate
from model_repository.tokenizer.tool_messages import Arguments

type _Message = dict[str, Any]

_INSTRUCTIONS = ("system", "developer")
_CHAT = frozenset({*_INSTRUCTIONS, "user", "assistant", "tool"})
_CALLING = "calling"  # the role of an assistant that calls tools
# The shortest conversation that ends with a role.
_SHORTEST: Mapping[str, Sequence[str]] = {
    "user": ("user",),
    "assistant": ("user", "assistant"),
    _CALLING: ("user", _CALLING),
    "tool": ("user", _CALLING, "tool"),
}
_JOINED = ((["user"], "user"), (["tool"], "user"), (["assistant"], "assistant"), (["assistant"], _CALLING))
_NEXT = {"user": "assistant", "assistant": "user", _CALLING: "tool", "tool": "assistant"}
_CALL: Mapping[str, Any] = {
    "id": "abcdefghi",  # Mistral's form
    "type": "function",
    "function": {"name": "f", "arguments": Arguments()},
}


class RoleOrder:
    """Rewrites conversations for a template. Trials show the orders of roles that it takes; each is rendered once.

    Messages stay as they are where the template takes them. Otherwise:

    - A `developer` becomes a `system`, or the other way round.
    - Instructions before the conversation become one message. Without a role for them they begin the user's text.
    - Later instructions begin the next text of the user, or are one; they do not stand before results of tools.
    - A text of the user joins the one before it, or the result of a tool. A text of the assistant joins the one before.
    - An empty text of the user precedes an assistant that is the first.
    """

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._tried: dict[Sequence[str], bool | None] = {}
        self._names: dict[str, str] = {}

    def rewritten(self, messages: list[_Message]) -> list[_Message]:
        """Return a conversation in an order that the template takes. One with other roles than a chat's stays."""
        roles = [message["role"] for message in messages]
        is_taken = roles in (["user"], ["system", "user"]) and self.takes(*roles)  # most conversations
        if is_taken or not self.takes("user") or not _CHAT.issuperset(roles):
            return messages
        names = [*map(self._name, roles)]
        if names != roles:
            messages = [{**message, "role": name} for message, name in zip(messages, names, strict=True)]
        leading = [*itertools.takewhile(lambda message: message["role"] in _INSTRUCTIONS, messages)]
        conversation = _Conversation(self, leading)
        for message in messages[len(leading) :]:
            conversation.add(message)
        return conversation.end()

    def takes(self, *roles: str) -> bool:
        """Whether the template writes the texts of a conversation with these roles."""
        return self._trial(roles) is True

    def refuses(self, *roles: str) -> bool:
        """Whether the template refuses a conversation with these roles."""
        return self._trial(roles) is None

    def _trial(self, roles: Sequence[str]) -> bool | None:
        if roles not in self._tried:
            texts = [secrets.token_hex() for _ in roles]
            rendered = self._rendered(roles, texts)
            spoken = [text for role, text in zip(roles, texts, strict=True) if role not in (_CALLING, "tool")]
            self._tried[roles] = None if rendered is None else all(text in rendered for text in spoken)
        return self._tried[roles]

    def _rendered(self, roles: Sequence[str], texts: Sequence[str]) -> str | None:
        messages = []
        for role, text in zip(roles, texts, strict=True):
            if role == _CALLING:
                messages.append({"role": "assistant", "content": "", "tool_calls": [_CALL]})
            elif role == "tool":
                messages.append({"role": role, "content": text, "tool_call_id": _CALL["id"], "name": "f"})
            else:
                messages.append({"role": role, "content": text})
        try:
            variables = {"messages": messages, "tools": None}
            return self._template.render(variables, add_generation_prompt=roles[-1] != "assistant")
        except InvalidRequest:
            return None

    def _name(self, role: str) -> str:
        """Return the name by which the template knows a role."""
        if role not in self._names:
            name = role
            if role == "developer" and not self._knows_developer():
                name = "system"
            elif role == "system" and not self.takes("system", "user") and self._knows_developer():
                name = "developer"
            self._names[role] = name
        return self._names[role]

    def _knows_developer(self) -> bool:
        """Whether the template writes a developer otherwise than a role that nobody knows."""
        texts, other = [secrets.token_hex(), secrets.token_hex()], f"r{secrets.token_hex()}"
        known, unknown = (self._rendered((role, "user"), texts) for role in ("developer", other))
        is_like_any = unknown is not None and known == unknown.replace(other, "developer")
        return self.takes("developer", "user") and not is_like_any


class _Conversation:
    """A conversation that a template takes, message by message.

    Args:
        leading: the instructions before it.
    """

    def __init__(self, order: RoleOrder, leading: Sequence[_Message]) -> None:
        self._order = order
        self._messages = [*leading]
        self._end: list[str] = []  # roles of the shortest conversation that ends like this one
        self._waiting: list[str] = []  # instructions for the next text of the user
        roles = [message["role"] for message in leading]
        if roles and not order.takes(*roles[:2], *roles[2:][-1:], "user"):
            text = _joined(message["content"] for message in leading)
            is_role = order.takes(roles[0], "user")
            self._messages = [{**leading[0], "content": text}] if is_role else []
            self._waiting = [] if is_role else [text]

    def add(self, message: _Message) -> None:
        """Add a message."""
        role = message["role"]
        if role in _INSTRUCTIONS:
            *_, last = self._end = [each for each in self._end if each not in _INSTRUCTIONS]
            if self._order.takes(*self._end, role, _NEXT[last]):
                self._messages.append(message)
                self._end.append(role)
            else:
                self._waiting.append(message["content"])
            return
        if self._waiting and role == "user":
            message = {**message, "content": _joined([*self._waiting, message["content"]])}
            self._waiting = []
        elif role != "tool":
            self._add_waiting()
        self._add(message)

    def end(self) -> list[_Message]:
        """Return all messages."""
        self._add_waiting()
        return self._messages

    def _add_waiting(self) -> None:
        if self._waiting:
            text, self._waiting = _joined(self._waiting), []
            self._add({"role": "user", "content": text})

    def _add(self, message: _Message) -> None:
        kind = _CALLING if message.get("tool_calls") else message["role"]
        if not self._end and kind in ("assistant", _CALLING) and self._order.refuses(kind, _NEXT[kind]):
            self._add({"role": "user", "content": ""})
        if (self._end[-1:], kind) in _JOINED and not self._order.takes(*self._end, kind):
            last = self._messages.pop()
            content = _joined([last["content"], message["content"]])
            message = {**message, **last, "content": content}
            kind = _CALLING if message.get("tool_calls") else last["role"]
        self._messages.append(message)
        self._end = [*_SHORTEST[kind]]


def _joined(texts: Iterable[str]) -> str:
    return "\n\n".join(filter(None, texts))
