"""Read arguments in other notations than JSON, and write them as a JSON object while they stream."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from frontend.output_parser.arguments import ArgumentsReader, Ending, ObjectReader, StringReader
from model_repository.notations import PYTHON_WORDS, Notation, json_type, property_types

type _Step = Callable[[str], tuple[str, int, bool]]

_WORDS = {written: word for word, written in PYTHON_WORDS.items()}
# What a value of each type looks like before it is complete.
_BEGINNINGS = {
    "object": re.compile(r"\s*({|\Z)"),
    "array": re.compile(r"\s*(\[|\Z)"),
    "number": re.compile(r"\s*[0-9eE.+-]*\s*(<|\Z)"),
    "boolean": re.compile(r"\s*(t(r(ue?)?)?|f(a(l(se?)?)?)?)?\s*(<|\Z)"),
    "null": re.compile(r"\s*(n(u(ll?)?)?)?\s*(<|\Z)"),
}
# A comma before a closing bracket counts as nothing, as in Python.
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<opening>[{[(]) | (?:,\s*+)?(?P<closing>[]})]) | (?P<comma>,)(?=\s*+\S) | (?P<colon>[:=])
    | (?P<word>[^\s,:=(){}[\]"'<]++)\s*+(?=.)
    )""",
    re.VERBOSE,
)


class NotationReader:
    """Reads step by step. A step returns a piece of JSON, the characters read, and whether there is more to read."""

    def __init__(self) -> None:
        self._step: _Step | None = None  # None: the arguments are closed

    def read(self, text: str) -> tuple[str, int, Ending | None]:
        """See ArgumentsReader."""
        pieces: list[str] = []
        position, goes_on = 0, True
        while goes_on and self._step is not None:
            piece, size, goes_on = self._step(text[position:])
            pieces.append(piece)
            position += size
        return "".join(pieces), position, None if self._step is not None else Ending.CLOSED


class MarkedReader(NotationReader):
    """Reads values between markers. Line breaks of a marker may be missing.

    Texts have no quotation marks. In some notations they have a marker of their own. In the others the schema says
    whether a value is a text.

    Args:
        notation: without a quote.
        schema: JSON schema of the arguments.
    """

    def __init__(self, notation: Notation, schema: Mapping[str, Any]) -> None:
        self._step = self._read_key
        self._notation = notation
        self._schema = schema
        # Whether a line break ends the head is certain with the next character.
        of_text, of_other = (
            re.sub("\n[?]$", "(?:\n|(?=[^\n]))", _loose(each))
            for each in (notation.after_key, notation.after_key_of_other)
        )
        self._head = re.compile(f"(?P<key>[^\\n]*?)(?:(?P<text>{of_text})" + (f"|{of_other})" if of_other else ")"))
        self._end = re.compile(_loose(notation.text_end))
        self._lead = "{"  # of the next key
        self._others: frozenset[str] = frozenset()  # types beside a text
        self._nested: ArgumentsReader = ObjectReader("")

    def _read_key(self, text: str) -> tuple[str, int, bool]:
        position = len(text) - len(text.lstrip())
        before = self._notation.before_key
        if not text.startswith(before, position):
            if before.startswith(text[position:]):
                return "", position, False
            self._step = None
            return "}" if self._lead == ", " else "{}", position, False
        head = self._head.match(text, position + len(before))
        if head is None:
            return "", position, False
        types = property_types(self._schema, head["key"])
        has_mark = bool(self._notation.after_key_of_other)
        is_text = head["text"] is not None if has_mark else "string" in types
        self._others = types - {"string"} if is_text and not has_mark else frozenset()
        self._step = self._read_mixed if self._others else self._read_text if is_text else self._read_other
        key = f"{self._lead}{json.dumps(head['key'], ensure_ascii=False)}: "
        self._lead = ", "
        return key + '"' * (self._step == self._read_text), head.end(), True

    def _read_mixed(self, text: str) -> tuple[str, int, bool]:
        """Read a value that may be a text or of another type. It is a text only if it cannot be of the other type."""
        if end := self._end.search(text):
            value = text[: end.start()].strip()
            if _json_type(value) in self._others:
                self._step = self._read_key
                return value, end.end(), True
        elif any(_BEGINNINGS[each].match(text) for each in self._others):
            return "", 0, False
        self._step = self._read_text
        return '"', 0, True

    def _read_text(self, text: str) -> tuple[str, int, bool]:
        if end := self._end.search(text):
            self._step = self._read_key
            return _escaped(text[: end.start()]) + '"', end.end(), True
        length = _certain_length(text, self._notation.text_end)
        return _escaped(text[:length]), length, False

    def _read_other(self, text: str) -> tuple[str, int, bool]:
        if text[:1] in ("{", "["):
            self._nested, self._step = ObjectReader(""), self._read_nested
            return "", 0, True
        if end := self._end.search(text):
            self._step = self._read_key
            return _scalar(text[: end.start()].strip()), end.end(), True
        return "", 0, False

    def _read_nested(self, text: str) -> tuple[str, int, bool]:
        piece, size, ending = self._nested.read(text)
        if ending is not None:
            self._step = self._read_end
        return piece, size, ending is not None

    def _read_end(self, text: str) -> tuple[str, int, bool]:
        end = self._end.search(text)
        if end is None:
            return "", 0, False
        self._step = self._read_key
        return "", end.end(), True


class LiteralReader(NotationReader):
    """Reads literals as Python's and Gemma's, in one bracket that is open already.

    Args:
        notation: with a quote.
    """

    def __init__(self, notation: Notation) -> None:
        self._step = self._read_opening
        self._quote = notation.quote
        self._closings = ["}"]  # of the open brackets
        self._string = StringReader()

    def _read_opening(self, text: str) -> tuple[str, int, bool]:
        self._step = self._read_token
        return "{", 0, True

    def _read_token(self, text: str) -> tuple[str, int, bool]:
        start = len(text) - len(text.lstrip())
        if start == len(text):
            return "", start, False
        if text.startswith(self._quote, start) and self._quote != '"':
            self._step = self._read_quoted
            return '"', start + len(self._quote), True
        if text.startswith(('"', "'"), start):
            self._string, self._step = StringReader(text[start]), self._read_string
            return '"', start, True
        found = _TOKEN.match(text)
        if found is None:
            return "", 0, False
        if found["closing"]:
            closing = self._closings.pop()
            self._step = self._step if self._closings else None
            return closing, found.end(), True
        if found["opening"]:
            is_object = found["opening"] == "{"
            self._closings.append("}" if is_object else "]")
            return "{" if is_object else "[", found.end(), True
        if found["word"] is None:
            return ", " if found["comma"] else ": ", found.end(), True
        is_key = text[found.end()] in ":="
        word = json.dumps(found["word"], ensure_ascii=False) if is_key else _scalar(found["word"])
        return word, found.end(), True

    def _read_quoted(self, text: str) -> tuple[str, int, bool]:
        end = text.find(self._quote)
        if end < 0:
            length = _certain_length(text, self._quote)
            return _escaped(text[:length]), length, False
        self._step = self._read_token
        return _escaped(text[:end]) + '"', end + len(self._quote), True

    def _read_string(self, text: str) -> tuple[str, int, bool]:
        piece, size, ending = self._string.read(text)
        if ending is not None:
            self._step = self._read_token
        return _escaped(piece) + '"' * (ending is not None), size, ending is not None


def _loose(marker: str) -> str:
    return re.escape(marker).replace("\\\n", "\n?")


def _certain_length(text: str, end: str) -> int:
    """Return the length of a text without what may begin its end, whose first line break may be missing."""
    for size in range(min(len(text), len(end)), 0, -1):
        if end.startswith(text[-size:]) or end.lstrip("\n").startswith(text[-size:]):
            return len(text) - size
    return len(text)


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _scalar(value: str) -> str:
    """Return a value as JSON: Python's words and texts without quotes, too."""
    return value if _json_type(value) else _WORDS.get(value, json.dumps(value, ensure_ascii=False))


def _json_type(value: str) -> str | None:
    """Return the type of a JSON value; None: it is not JSON."""
    try:
        return json_type(json.loads(value, parse_constant=_refuse))
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
