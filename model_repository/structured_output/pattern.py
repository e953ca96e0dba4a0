"""Translates regular expressions of JSON Schema, in ECMA-262's syntax with its `u` flag, to llguidance's syntax.

Each construct is parsed and written again. In Rust a class may contain classes and operators, and `\\d`, `\\s`, `\\w`
and `.` match other characters. llguidance accepts anchors only at the ends of an expression. Constructs that
ECMA-262 and Python read differently, or that llguidance cannot follow, are refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NoReturn, TypeGuard

from model_repository.structured_output.refusal import decline, refuse

# Time and memory grow with the square of the optional parts of an expression: 2,000 take about 0.1 s.
MAX_OPTIONAL = 2_000
MAX_PATTERN_CHARS = 5_000
MAX_PATTERN_SIZE = 100_000  # characters after writing out every counted repetition
MAX_GROUPS = 100  # nested groups

_MAX_CHAR = 0x10FFFF
# Without NUL: inside JSON strings llguidance 1.9 adds the quotation mark and the backslash to a class with all control
# characters.
_ANY = r"[^\x{0}]*"

# zod's e-mail address, before zod 4.6 and since then: the same texts.
_WITHOUT_LOOK_AHEAD = {
    r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$": (
        r"^(?:[A-Za-z0-9_'+\-]+\.)*[A-Za-z0-9_'+\-]*[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
    )
}

type _Ranges = list[tuple[int, int]]  # code points, ends included

_DIGIT: _Ranges = [(0x30, 0x39)]
_WORD: _Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_LINE_END: _Ranges = [(0xA, 0xA), (0xD, 0xD), (0x2028, 0x2029)]
_SPACE: _Ranges = [(9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)]
_SPACE += [(0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)]


def _complement(ranges: _Ranges) -> _Ranges:
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), _MAX_CHAR]
    return [(low, high) for low, high in zip(starts, ends, strict=True) if low <= high]


_CLASS_ESCAPES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CLASS_ESCAPES |= {name.upper(): _complement(ranges) for name, ranges in _CLASS_ESCAPES.items()}
_CONTROL_ESCAPES = {"0": 0, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}

_REPETITION = re.compile(r"[*+?]|\{([0-9]{1,9})(?:,([0-9]{0,9}))?\}")
_GROUP = re.compile(r"\((?:\?(?:([is]*):|P?<[A-Za-z_][A-Za-z0-9_]*>))?(?!\?)")
_FLAGS = re.compile(r"\(\?([is]+)\)|")
_CODE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\})")
_LOW_SURROGATE = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_OCTAL = re.compile("0[0-9]")
# The properties with the same names in ECMA-262 and Rust.
_PROPERTY = re.compile(
    r"\\[pP]\{(?:L[ulmot]?|M[nce]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?|C[cf]?|Letter|Mark|Number|Punctuation|Symbol"
    r"|Alphabetic|Lowercase|Uppercase|White_Space|ASCII|Any|ID_Start|ID_Continue|Emoji(?:_Component|_Presentation)?"
    r"|Extended_Pictographic|(?:Script|sc)=(?:Latin|Greek|Cyrillic|Arabic|Hebrew|Han|Hiragana|Katakana|Hangul|Thai))\}"
)


class _Side(Enum):
    """The surroundings of a part of an expression."""

    ANYTHING = auto()  # any text, unless an anchor forbids it
    END = auto()  # the end of the text, or its beginning
    PART = auto()  # another part


@dataclass(slots=True)
class _Group:
    branches: list[list[_Item]]
    prefix: str = "(?:"
    has_anchor: bool = False


@dataclass(slots=True)
class _Item:
    atom: str | _Group  # Rust's syntax; `^` and `$` are the anchors
    repetition: str = ""
    max_times: int = 1


def search_pattern(pattern: str, path: str) -> str:
    """Return the expression of all texts that contain a match of the pattern. No such text contains NUL.

    Args:
        path: the pattern's name in messages.

    Raises:
        InvalidRequest: the pattern is malformed or too large.
        Unsupported: it cannot be enforced exactly.
    """
    return _whole(pattern, path, _Side.ANYTHING)


def whole_pattern(pattern: str, path: str) -> str:
    """Return the expression of all texts that match the pattern as a whole. No such text contains NUL.

    Raises:
        InvalidRequest, Unsupported: as search_pattern does.
    """
    return _whole(pattern, path, _Side.END)


def literal(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"


def _whole(pattern: str, path: str, side: _Side) -> str:
    if len(pattern) > MAX_PATTERN_CHARS:
        refuse(f"{path}: a pattern has at most {MAX_PATTERN_CHARS} characters")
    reader = _Reader(_WITHOUT_LOOK_AHEAD.get(pattern, pattern), path)
    root = reader.read()
    if _size(root) > MAX_PATTERN_SIZE:
        refuse(f"{path}: its repetitions have more than {MAX_PATTERN_SIZE} characters")
    if reader.num_optional > MAX_OPTIONAL:
        refuse(f"{path}: more than {MAX_OPTIONAL} optional parts")
    return _written(root, side, side, path)


def _size(group: _Group) -> int:
    """Return the number of characters of a group after writing out its counted repetitions."""
    return sum(
        (_size(item.atom) if isinstance(item.atom, _Group) else 1) * max(item.max_times, 1)
        for branch in group.branches
        for item in branch
    )


def _written(group: _Group, left: _Side, right: _Side, path: str) -> str:
    """Return a group in Rust's syntax, without anchors: they only decide whether any text may stand beside them."""
    if not group.has_anchor:
        branches = ["".join(_written_item(item, path) for item in branch) for branch in group.branches]
        before, after = (_ANY if side is _Side.ANYTHING else "" for side in (left, right))
        return f"{before}{group.prefix}{'|'.join(branches)}){after}"
    return f"{group.prefix}{'|'.join(_written_branch(branch, left, right, path) for branch in group.branches)})"


def _written_branch(items: list[_Item], left: _Side, right: _Side, path: str) -> str:
    while items and items[0].atom == "^" and left is not _Side.PART:
        items, left = items[1:], _Side.END
    while items and items[-1].atom == "$" and right is not _Side.PART:
        items, right = items[:-1], _Side.END
    before, after = (_ANY if side is _Side.ANYTHING else "" for side in (left, right))
    if not items:
        return before or after
    parts = []
    for index, item in enumerate(items):
        is_first, is_last = index == 0, index == len(items) - 1
        if isinstance(item.atom, _Group) and item.atom.has_anchor and not item.repetition:
            sides = (left if is_first else _Side.PART, right if is_last else _Side.PART)
            parts.append(_written(item.atom, *sides, path))
        else:
            parts.append(f"{before * is_first}{_written_item(item, path)}{after * is_last}")
    return "".join(parts)


def _written_item(item: _Item, path: str) -> str:
    if item.atom in ("^", "$"):
        decline(f"{path}: {item.atom} is enforced only at the ends of a pattern")
    atom = item.atom if isinstance(item.atom, str) else _written(item.atom, _Side.PART, _Side.PART, path)
    return atom + item.repetition


class _Reader:
    """Reads one expression."""

    def __init__(self, pattern: str, path: str) -> None:
        self._pattern = pattern
        self._path = path
        self._index = 0
        self._is_dot_all = False  # `.` matches the end of a line, too
        self.num_optional = 0

    def read(self) -> _Group:
        flags = _FLAGS.match(self._pattern)
        assert flags is not None  # it may be empty
        self._index = flags.end()
        group = self._branches(flags[1] or "", depth=0)
        if self._index < len(self._pattern):
            self._refuse("a ) without a (")
        return group

    def _branches(self, flags: str, depth: int) -> _Group:
        """Read a group, up to its closing parenthesis."""
        if depth > MAX_GROUPS:
            self._refuse(f"more than {MAX_GROUPS} groups within each other")
        group = _Group([[]], "(?i:" if "i" in flags else "(?:")
        is_dot_all_outside, self._is_dot_all = self._is_dot_all, self._is_dot_all or "s" in flags
        while self._index < len(self._pattern) and self._pattern[self._index] != ")":
            if self._skip("|"):
                group.branches.append([])
                continue
            atom = self._atom(depth)
            item = _Item(atom)
            group.branches[-1].append(item)
            group.has_anchor |= atom.has_anchor if isinstance(atom, _Group) else atom in ("^", "$")
            self._repeat(item)
        self._is_dot_all = is_dot_all_outside
        return group

    def _atom(self, depth: int) -> str | _Group:
        char = self._pattern[self._index]
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._class()
        if char == "\\":
            return self._one_of([self._escape()])
        if _REPETITION.match(self._pattern, self._index):
            self._refuse(f"there is nothing that {char} could repeat")
        self._index += 1
        if char == ".":
            return self._one_of([[(0, _MAX_CHAR)] if self._is_dot_all else _complement(_LINE_END)])
        return char if char in "^$" else self._one_of([[(ord(char), ord(char))]])

    def _repeat(self, item: _Item) -> None:
        """Read the repetition of an item, if there is one."""
        if self._pattern.startswith("{,", self._index):
            self._decline("{,n} means different things to different readers; write {0,n}")
        found = _REPETITION.match(self._pattern, self._index)
        if found is None:
            return
        if item.atom in ("^", "$"):
            self._decline(f"a repeated {item.atom} is not enforced")
        low, high = found.groups()
        if high and int(high) < int(low):
            self._refuse(f"{found[0]}: the numbers are in the wrong order")
        item.repetition = found[0]
        item.max_times = int(high or low or 1)
        self.num_optional += found[0] in "*?" or (low is not None and int(low) == 0)
        self._index = found.end()
        self._skip("?")  # a lazy repetition matches the same texts
        if self._pattern.startswith("+", self._index):
            self._decline("possessive repetitions are not enforced")
        if _REPETITION.match(self._pattern, self._index):
            self._refuse("a repetition of a repetition; put the first in (?:...)")

    def _group(self, depth: int) -> _Group:
        found = _GROUP.match(self._pattern, self._index)
        if found is None:
            if self._pattern.startswith(("(?=", "(?!", "(?<=", "(?<!"), self._index):
                self._decline("look-ahead and look-behind are not enforced")
            self._decline(f"{self._pattern[self._index : self._index + 4]}: this kind of group is not enforced")
        self._index = found.end()
        group = self._branches(found[1] or "", depth + 1)
        if not self._skip(")"):
            self._refuse("unclosed group")
        return group

    def _class(self) -> str:
        self._index += 1
        is_negated = self._skip("^")
        if self._pattern.startswith("]", self._index):
            self._decline("an empty class of characters is not enforced")
        items: list[_Ranges | str] = []
        while not self._skip("]"):
            low = self._class_item()
            # A hyphen at the end of a class, or beside a class, stands for itself.
            if self._pattern.startswith("-", self._index) and not self._pattern.startswith("-]", self._index):
                self._index += 1
                high = self._class_item()
                if _is_char(low) and _is_char(high):
                    low = [(low[0][0], high[0][0])]
                    if low[0][0] > low[0][1]:
                        self._refuse("a range of characters is in the wrong order")
                else:
                    items += [[(ord("-"), ord("-"))], high]
            items.append(low)
        return self._one_of(items, is_negated=is_negated)

    def _class_item(self) -> _Ranges | str:
        if self._index >= len(self._pattern):
            self._refuse("a class of characters has no end")
        char = self._pattern[self._index]
        if char == "\\":
            return [(8, 8)] if self._skip("\\b") else self._escape()
        self._index += 1
        return [(ord(char), ord(char))]

    def _escape(self) -> _Ranges | str:
        """Read an escape; return its characters, or a character property in Rust's syntax."""
        if found := _CODE.match(self._pattern, self._index):
            self._index = found.end()
            code = int(found[1] or found[2] or found[3], 16)
            if 0xD800 <= code <= 0xDBFF and (low := _LOW_SURROGATE.match(self._pattern, self._index)):
                self._index = low.end()
                code = 0x10000 + (code - 0xD800) * 0x400 + int(low[1], 16) - 0xDC00
            if 0xD800 <= code <= 0xDFFF or code > _MAX_CHAR:
                self._decline(f"{found[0]} is no character")
            return [(code, code)]
        if found := _PROPERTY.match(self._pattern, self._index):
            self._index = found.end()
            return found[0]
        char = self._pattern[self._index + 1 : self._index + 2]
        if not char:
            self._refuse("ends in a backslash")
        self._index += 2
        if char in _CLASS_ESCAPES:
            return _CLASS_ESCAPES[char]
        if char in _CONTROL_ESCAPES and not _OCTAL.match(self._pattern, self._index - 1):
            return [(_CONTROL_ESCAPES[char], _CONTROL_ESCAPES[char])]
        if char in "bB":
            self._decline("word boundaries are not enforced")
        if char in "123456789k":
            self._decline("back references are not enforced")
        if char.isascii() and char.isalnum():
            self._decline(f"\\{char}: this escape is not enforced")
        return [(ord(char), ord(char))]

    def _one_of(self, items: Sequence[_Ranges | str], *, is_negated: bool = False) -> str:
        """Return the expression of one of these characters, or of one of all others. NUL never matches."""
        ranges = [(max(low, 1), high) for item in items if not isinstance(item, str) for low, high in item if high]
        properties = [item for item in items if isinstance(item, str)]
        if _is_char(ranges) and not properties and not is_negated:
            return literal(chr(ranges[0][0]))
        inner = "".join([f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in ranges] + properties)
        if is_negated:
            return f"[^\\x{{0}}{inner}]"
        if not inner:
            self._decline("a pattern with the character NUL is not enforced")
        return f"[[{inner}]&&[^\\x{{0}}]]" if properties else f"[{inner}]"

    def _skip(self, text: str) -> bool:
        is_there = self._pattern.startswith(text, self._index)
        self._index += len(text) * is_there
        return is_there

    def _refuse(self, text: str) -> NoReturn:
        refuse(f"{self._path}: {text}")

    def _decline(self, text: str) -> NoReturn:
        decline(f"{self._path}: {text}")


def _is_char(item: _Ranges | str) -> TypeGuard[_Ranges]:
    return not isinstance(item, str) and len(item) == 1 and item[0][0] == item[0][1]
