"""The grammar of a custom tool's input as one regular expression, in the syntax of a JSON schema's `pattern`.

A schema can enforce it inside of a call's JSON. Lark's rules without recursion are a regular language: the rules that
`start` refers to are written out.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from lark import Lark, Token, Tree, UnexpectedInput
from lark.lexer import PatternRE, TerminalDef

from model_repository.structured_output.pattern import (
    MAX_PATTERN_CHARS,
    MAX_PATTERN_SIZE,
    search_pattern,
    whole_pattern,
)
from model_repository.structured_output.refusal import refuse

_FLAGS = re.compile(r"(?:\(\?[is]+\))?")  # of a whole expression
# An escape of a Lark string that an expression has, too, or a character that may have a meaning there.
_STRING_PART = re.compile(r'\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|["\\nrtf])|\W')
_ONE_CHAR = re.compile(r"\\?.|\\x..|\\u....", re.DOTALL)
_DOT = re.compile(r"(\\.|\[(?:\\.|[^\]\\])*+)|\.", re.DOTALL)
# The same texts as Lark's, which take 2**n steps for n backslashes without an end, and n**2 for n empty lines.
_LINEAR = {"REGEXP": r"/(?!/)(?:\\.|[^/\\])*/[imslux]*", "_VBAR": r"(?:\r?\n\s*)?\|"}
# Lark's own definition looks behind.
_ESCAPED_STRING = r'"(?:[^"\\\n]|\\[^\n])*"'


def input_pattern(syntax: str, definition: str) -> str:
    """Return the pattern of the inputs that a grammar allows.

    Args:
        syntax: `regex` or `lark`.

    Raises:
        InvalidRequest: the grammar is malformed or too large, or cannot be enforced.
    """
    if syntax == "regex":
        whole_pattern(definition, syntax)
        flags = _FLAGS.match(definition)
        assert flags is not None  # it may be empty
        pattern = f"{flags[0]}^(?:{definition[flags.end() :]})$"
    else:
        pattern = f"^(?:{_lark_pattern(definition)})$"
    search_pattern(pattern, "the grammar as one regular expression")
    return pattern


def prepare() -> None:
    """Read Lark's own grammars, which later calls in this process and its forks need."""
    _common()


def _lark_pattern(definition: str) -> str:
    try:
        return _Grammar(definition).pattern("start")
    except UnexpectedInput as exc:
        line = definition.split("\n")[exc.line - 1].strip()[:100]
        refuse(f"line {exc.line}, column {exc.column}: this is not Lark: {line}")
    except RecursionError:
        refuse("nested too deeply")


@functools.cache
def _parser() -> Lark:
    options = {"parser": "lalr", "maybe_placeholders": False, "edit_terminals": _make_linear}
    return Lark.open_from_package("lark", "lark.lark", ["grammars"], **options)


def _make_linear(terminal: TerminalDef) -> None:
    """Replace a pattern of Lark's own grammar that takes more steps than characters."""
    if terminal.name in _LINEAR:
        terminal.pattern = PatternRE(_LINEAR[terminal.name])


@functools.cache
def _common() -> Mapping[str, str]:
    """Return the patterns of the terminals that `%import common.X` names."""
    common = _Grammar((resources.files("lark") / "grammars" / "common.lark").read_text())
    common.patterns["ESCAPED_STRING"] = _ESCAPED_STRING
    return {name: common.pattern(name) for name in common.definitions if not name.startswith("_")}


class _Grammar:
    """The rules and terminals of a grammar, and their patterns.

    Raises:
        UnexpectedInput: it is malformed.
        InvalidRequest: a statement is not enforced.
    """

    def __init__(self, text: str) -> None:
        self.patterns: dict[str, str] = {}
        self.definitions: dict[str, Tree[Token]] = {}
        self._open: list[str] = []  # names whose patterns are being written, from the outside
        for statement in _parser().parse(text).children:
            assert isinstance(statement, Tree)
            self._add(statement.data, *statement.children)

    def pattern(self, name: str) -> str:
        """Return the pattern of a rule or a terminal."""
        if name not in self.patterns:
            if name in self._open:
                refuse(f"{name}: refers to itself, and only grammars without recursion are enforced")
            if name not in self.definitions:
                refuse(f"{name}: there is no rule of that name")
            self._open.append(name)
            pattern = self._written(self.definitions[name])
            if len(pattern) > MAX_PATTERN_CHARS:
                refuse(f"{name}: with all that it refers to, more than {MAX_PATTERN_CHARS} characters")
            self.patterns[self._open.pop()] = pattern
        return self.patterns[name]

    def _add(self, kind: str, first: Any, *rest: Any) -> None:
        match kind:
            case "rule" | "token":
                name = first.lstrip("!?")
                if rest[0].children:
                    refuse(f"{name}: templates are not enforced")
                if name in self.definitions or name in self.patterns:
                    refuse(f"{name}: defined twice")
                self.definitions[name] = rest[-1]
            case "import":
                module, _, name = _text(first).rpartition(".")
                self._import(module, name, _text(rest[0]) if rest else name)
            case "multi_import":
                for name in map(_text, rest[0].children):
                    self._import(_text(first), name, name)
            case _:
                refuse(f"%{kind.removesuffix('_rule')} is not enforced")

    def _import(self, module: str, name: str, alias: str) -> None:
        if module != "common" or name not in _common():
            refuse(f"%import {module}.{name}: only the terminals of `common` can be imported")
        self.patterns[alias] = _common()[name]

    def _written(self, node: Any) -> str:
        children = node.children
        match node.data:
            case "name":
                return self.pattern(str(children[0]))
            case "literal" if children[0].startswith("/"):
                return self._expression(children[0])
            case "literal":
                return _string(children[0])
            case "literal_range":
                low, high = map(_string, children)
                if not _ONE_CHAR.fullmatch(low) or not _ONE_CHAR.fullmatch(high):
                    refuse(f"{self._open[-1]}: a range has one character at each end")
                return f"[{low}-{high}]"
            case "expansions":
                return f"(?:{'|'.join(map(self._written, children))})"
            case "expansion":
                return "".join(map(self._written, children))
            case "alias":
                return self._written(children[0])
            case "maybe":
                return f"(?:{self._written(children[0])})?"
            case "expr":
                return f"(?:{self._written(children[0])}){self._repetition(*children[1:])}"
            case _:
                refuse(f"{self._open[-1]}: templates are not enforced")

    def _repetition(self, low: str, high: str = "") -> str:
        if low in ("?", "*", "+"):
            return low
        numbers = [int(each) for each in (low, high or low)]
        if not 0 <= min(numbers) <= max(numbers) <= MAX_PATTERN_SIZE:
            refuse(f"{self._open[-1]}: a repetition has 0 to {MAX_PATTERN_SIZE} times")
        return "{{{},{}}}".format(*numbers)

    def _expression(self, literal: str) -> str:
        """Return an expression of Lark, where `.` is any character but the line feed."""
        end = literal.rindex("/")
        body, flags = literal[1:end], literal[end + 1 :]
        if set(flags) - {"i", "s"}:
            refuse(f"{self._open[-1]}: {literal[:100]}: of the flags only i and s are enforced")
        if "s" not in flags:
            body = _DOT.sub(lambda found: found[1] or r"[^\n]", body)
        whole_pattern(body, f"{self._open[-1]}: {literal[:100]}")
        return f"(?{flags}:{body})"


def _string(literal: str) -> str:
    """Return the pattern of a string of Lark."""
    body, _, flags = literal[1:].rpartition('"')
    body = _STRING_PART.sub(lambda found: found[0] if len(found[0]) > 1 else f"\\{found[0]}", body)
    return f"(?i:{body})" if flags else body


def _text(node: Any) -> str:
    return "".join(node.scan_values(lambda token: True))
