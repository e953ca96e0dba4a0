"""Finds the end of a call's arguments while they stream."""

from __future__ import annotations

import json
import re
from enum import Enum, auto
from typing import Protocol


class Ending(Enum):
    """Why arguments end where they do."""

    CLOSED = auto()  # the JSON value is complete
    MARKER = auto()  # the end marker comes before the end of the value


class ArgumentsReader(Protocol):
    """Reads one value."""

    def read(self, text: str) -> tuple[str, int, Ending | None]:
        """Return the next piece of the arguments, the characters read, and the ending if they end there.

        The next call gets the unread characters again, followed by more.
        """
        ...


class ObjectReader:
    """Finds the end of a JSON object or array by its strings and brackets.

    Args:
        end_marker: ends the value outside of strings; empty: no marker.
        depth: number of open brackets.
    """

    _IN_STRING = re.compile(r'"|\\')

    def __init__(self, end_marker: str, depth: int = 0) -> None:
        self._end_marker = end_marker
        self._outside = re.compile(rf'["{{}}\[\]{re.escape(end_marker[:1])}]')
        self._depth = depth
        self._is_in_string = False

    def read(self, text: str) -> tuple[str, int, Ending | None]:
        """See ArgumentsReader; a piece is the text itself."""
        position = 0
        while found := (self._IN_STRING if self._is_in_string else self._outside).search(text, position):
            position = found.end()
            match found.group():
                case '"':
                    self._is_in_string = not self._is_in_string
                case "\\":
                    if position == len(text):
                        return text[:-1], len(text) - 1, None
                    position += 1
                case "{" | "[":
                    self._depth += 1
                case "}" | "]":
                    self._depth -= 1
                    if self._depth == 0:
                        return text[:position], position, Ending.CLOSED
                case _:
                    start = found.start()
                    if text.startswith(self._end_marker, start):
                        return text[:start], start, Ending.MARKER
                    if self._end_marker.startswith(text[start:]):
                        return text[:start], start, None
        return text, len(text), None


class StringReader:
    """Decodes a JSON string, also in other quotation marks: some models write arguments inside one."""

    _PART = re.compile(
        r"""[^"'\\]+
        | \\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}
        | \\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}
        | \\["'\\/bfnrt]""",
        re.VERBOSE,
    )
    _CUT_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3}|u[dD][89abAB][0-9a-fA-F]{2}(?:\\(?:u[0-9a-fA-F]{0,3})?)?)?")

    def __init__(self, mark: str = '"') -> None:
        self._mark = mark
        self._is_open = False

    def read(self, text: str) -> tuple[str, int, Ending | None]:
        """See ArgumentsReader; an invalid escape stays as it is."""
        pieces: list[str] = []
        position = 0
        if not self._is_open and text:
            self._is_open, position = True, 1
        while position < len(text):
            if text[position] == self._mark:
                return "".join(pieces), position + 1, Ending.CLOSED
            if text[position] in "\"'":
                pieces.append(text[position])
                position += 1
            elif part := self._PART.match(text, position):
                pieces.append(_decoded(part.group()))
                position = part.end()
            elif self._CUT_ESCAPE.fullmatch(text, position):
                break
            else:
                pieces.append("\\")
                position += 1
        return "".join(pieces), position, None


class InputReader:
    """Decodes a custom tool's input from the arguments of its call, `{"input": "..."}`, of any pieces."""

    _HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*(?=")')

    def __init__(self) -> None:
        self._text = ""  # not read
        self._string: StringReader | None = None  # None: before or after the input

    def push(self, text: str) -> str:
        """Return the next piece of the input."""
        self._text += text
        if self._string is None:
            head = self._HEAD.match(self._text)
            if head is None:
                return ""
            self._text, self._string = self._text[head.end() :], StringReader()
        piece, size, ending = self._string.read(self._text)
        self._text = self._text[size:]
        if ending is not None:
            self._string = None
        return piece


def _decoded(part: str) -> str:
    if part == "\\'":  # Python's
        return "'"
    return str(json.loads(f'"{part}"')) if part[0] == "\\" else part
