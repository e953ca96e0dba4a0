"""GBNF, llama.cpp's language of grammars, as Lark."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set

from llguidance.gbnf_to_lark import (
    AlternativeNode,
    ASTNode,
    GbnfToLarkError,
    GrammarParser,
    RepetitionNode,
    RuleRefNode,
)
from llguidance.gbnf_to_lark import gbnf_to_lark as convert

from model_repository.errors import InvalidRequest
from model_repository.structured_output.refusal import FIELD, refuse

# llguidance 1.9 drops the inner group of ("a"{2}){3}.
setattr(RepetitionNode, "is_atomic", lambda node: False)  # noqa: B010 (mypy knows no assignment to a method)

# llguidance reads a rule without recursion as one expression, which takes its longest match; but never the first rule.
# So in `root ::= word "ing"` the word would match everything. Behind another first rule, root is such an expression.
_ROOT = "whole-text"
# Strings, character classes, any character, and the name root; also comments, to skip their quotes.
_TEXT = re.compile(r'"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])+\]|#[^\n]*|\.|(?<![\w-])root(?![\w-])')
# The name of the next rule, or the end of the grammar, would be read as the missing alternative.
_EMPTY_ALTERNATIVE = re.compile(r"(?:::=|\|)\s*(?:\Z|[\w-]+[ \t]*::=)")
_CHAR = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def gbnf_to_lark(content: str) -> str:
    """Return a grammar in Lark; its lines keep their numbers.

    Raises:
        InvalidRequest: the grammar is malformed.
    """
    try:
        plain = _TEXT.sub(_plain_text, content)
        if empty := _EMPTY_ALTERNATIVE.search(plain):
            refuse(
                f'grammar: line {_line_of(plain, empty.start())}: an alternative is empty; write "" for the empty text'
            )
        rules = GrammarParser().parse(plain)
        if _ROOT not in rules:
            refuse("grammar: there is no rule of the name root")
        lark: str = convert(f"{plain}\nroot ::= {_ROOT}\n")
        _check_finite(rules)
        return lark
    except RecursionError as exc:
        raise InvalidRequest("grammar: nested too deeply", FIELD) from exc
    except InvalidRequest:
        raise
    except GbnfToLarkError as exc:  # it quotes `plain`
        rule, line = str(exc).partition(" at line ")[0], _line_of(exc.pos.text, exc.pos.pos)
        text = content.split("\n")[line - 1].strip()[:100]
        raise InvalidRequest(f"grammar: line {line}: {rule}: {text}", FIELD) from exc
    except Exception as exc:  # the converter raises bare exceptions
        raise InvalidRequest(f"grammar: {str(exc)[:300]}", FIELD) from exc


def _line_of(text: str, index: int) -> int:
    return text.count("\n", 0, index) + 1


def _check_finite(rules: Mapping[str, ASTNode]) -> None:
    """Refuse rules that no finite text satisfies: llguidance may accept them, and they would never end."""
    finite: set[str] = set()
    num_before = -1
    while num_before < len(finite):
        num_before = len(finite)
        finite.update(name for name in reversed([*rules]) if _is_finite(rules[name], finite))
    if endless := [name for name in rules if name not in finite]:
        names = ", ".join(endless[:5]).replace(_ROOT, "root")
        refuse(f"grammar: no text satisfies {names}: each of the alternatives leads to the rule again, without an end")


def _is_finite(node: ASTNode, finite: Set[str]) -> bool:
    """Return whether a finite text satisfies this node. `finite` are the rules that certainly have one."""
    match node:
        case RuleRefNode():
            return node.name in finite
        case RepetitionNode() if node.min_times == 0:
            return True
        case AlternativeNode():
            return any(_is_finite(child, finite) for child in node.alternatives)
        case _:
            return all(_is_finite(child, finite) for child in node.children())


def _plain_text(found: re.Match[str]) -> str:
    """Return a text in escapes that the converter keeps: it breaks \\u, and takes `--` in a class for a difference."""
    text = found[0]
    if text.startswith("#"):
        return ""
    if text == "root":
        return _ROOT
    if text == ".":  # inside an expression `.` would not match the end of a line
        return r'(. | "\x0a")'
    body, result = text[1:-1], []
    is_class = text.startswith("[")
    if is_class and body.startswith("^"):
        body, result = body[1:], ["^"]
    chars = [(_char(item), item[5] == "-") for item in _CHAR.finditer(body)]
    for index, (char, is_dash) in enumerate(chars):
        is_range = is_class and is_dash and 0 < index < len(chars) - 1
        is_plain = not char.isascii() or char.isalnum() or (not is_class and char == " ")
        result.append(char if is_range or is_plain else f"\\x{ord(char):02x}")
    return text[0] + "".join(result) + text[-1]


def _char(item: re.Match[str]) -> str:
    if code := item[1] or item[2] or item[3]:
        if int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) <= 0xDFFF:
            refuse(f"grammar: {item[0]}: there is no such character")
        return chr(int(code, 16))
    if item[4]:
        if item[4] not in 'nrt"\\[]-^':
            refuse(f"grammar: {item[0]}: there is no such escape")
        return _ESCAPES.get(item[4], item[4])
    return item[5]
