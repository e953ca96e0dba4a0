"""Keeps the text of a user from becoming special tokens.

Before rendering, a mark is inserted behind every character of user text that could be part of an added token's string.
In the rendered text, strings without marks are the template's own. The rest is encoded as plain text, without marks.
Marks stand inside the text, so a template can still strip, split or compare it. Only the strings of added tokens change
for it: it does not find `</think>` in a content if that is such a token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from model_repository.errors import InvalidRequest

# Noncharacters: Unicode reserves them for a program's internal use, so templates neither contain nor strip them.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class MarkedText:
    """Marks user text and finds the strings of added tokens beside it.

    Args:
        added_tokens: the strings that the tokenizer would turn into tokens of their own.
    """

    def __init__(self, added_tokens: Iterable[str]) -> None:
        self._tokens = sorted(filter(None, added_tokens), key=len, reverse=True)
        self._any_token = "|".join(map(re.escape, self._tokens)) or r"(?!)"
        self._pattern = re.compile(self._any_token)
        ends = {re.escape(end) for token in self._tokens for end in (token[0], token[-1])}
        self._end = re.compile("|".join(sorted(ends)) or r"(?!)")
        self._together = "\ud800".join(self._tokens)  # prompts have no lone surrogates, so this finds no other texts
        self._beginnings = {token[:length] for token in self._tokens for length in range(1, len(token))}
        self._endings = {token[length:] for token in self._tokens for length in range(1, len(token))}
        self._longest = max(map(len, self._tokens), default=0)

    def protect(self, variables: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
        """Return a template's variables with marks in their text, and the mark: None if no text needs one.

        Args:
            variables: `messages` and other values of a user, as JSON's types, by name.

        Raises:
            InvalidRequest: a text needs a mark but contains all of them, or a value is nested too deeply.
        """
        try:
            marked = self._marked(variables, _MARKS[0])
            if marked == variables:
                return marked, None
            texts = json.dumps(variables, ensure_ascii=False)  # JSON's own characters are no marks
            mark = next((mark for mark in _MARKS if mark not in texts), None)
            if mark is None:
                raise InvalidRequest("the text holds all of U+FDD0 to U+FDEF, which are no characters", "messages")
            return (marked if mark == _MARKS[0] else self._marked(variables, mark)), mark
        except RecursionError as exc:
            raise InvalidRequest("nested too deeply", "messages") from exc

    def split(self, rendered: str, mark: str) -> Iterator[tuple[str, bool]]:
        """Yield the parts of a rendered text in order, each with whether it is an added token of the template's own."""
        end = 0
        # A mark behind a string belongs to the user's last character. A mark inside it prevents a match.
        for match in re.finditer(f"(?:{self._any_token})(?!{mark})", rendered):
            if match.start() > end:
                yield rendered[end : match.start()].replace(mark, ""), False
            yield match.group(), True
            end = match.end()
        if end < len(rendered):
            yield rendered[end:].replace(mark, ""), False

    def _marked(self, variables: Mapping[str, Any], mark: str) -> dict[str, Any]:
        return {name: self._mark_value(value, mark) for name, value in variables.items()}

    def _mark_value(self, value: Any, mark: str, key: str = "") -> Any:
        if isinstance(value, str):
            return self._mark(value, mark, key)
        if isinstance(value, dict):
            # Identifiers are names that a template looks up. Other keys are text, as in a tool's arguments.
            marked = {
                name if name.isidentifier() else self._mark(name, mark): self._mark_value(item, mark, name)
                for name, item in value.items()
            }
            return marked if type(value) is dict else type(value)(marked)
        if isinstance(value, Sequence):
            return [self._mark_value(item, mark, key) for item in value]
        return value

    def _mark(self, text: str, mark: str, key: str = "") -> str:
        # Outside of content a template compares names, `role == "user"`, `type == "string"`, and may build a token of
        # its own around a name: "<|" + role + "|>".
        is_open = (key == "content" or not text.isidentifier()) and self._is_inside(text)
        marked = text
        if self._end.search(text):  # most texts have no character that begins or ends a token
            marked = self._pattern.sub(lambda match: "".join(character + mark for character in match.group()), text)
            # The template may also complete a token's string before the text, behind it, or around it.
            if self._begins_open(text):
                marked = marked[0] + mark + marked[1:]
            is_open = is_open or self._ends_open(text)
        return marked + mark if is_open else marked

    def _begins_open(self, text: str) -> bool:
        return any(text[:length] in self._endings for length in range(1, min(self._longest, len(text)) + 1))

    def _ends_open(self, text: str) -> bool:
        return any(text[-length:] in self._beginnings for length in range(1, min(self._longest, len(text)) + 1))

    def _is_inside(self, text: str) -> bool:
        return 0 < len(text) < self._longest and text in self._together
