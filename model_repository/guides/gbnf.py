"""GBNF, llama.cpp's language of grammars, as Lark."""

from __future__ import annotations

import re

from llguidance.gbnf_to_lark import gbnf_to_lark as convert

from model_repository.errors import InvalidRequest
from model_repository.guides.refusal import FIELD, refuse

# The texts of a grammar: strings and classes of characters; comments, so that quotes in them are none.
_TEXT = re.compile(r'"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])+\]|#[^\n]*')
_CHAR = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def gbnf_to_lark(content: str) -> str:
    """Return a grammar in Lark; its lines stay where they are.

    Raises:
        InvalidRequest: the grammar is malformed.
    """
    try:
        return convert(_TEXT.sub(_plain_text, content))
    except RecursionError as exc:
        raise InvalidRequest("grammar: nested too deeply", FIELD) from exc
    except InvalidRequest:
        raise
    except Exception as exc:  # the converter raises bare ones
        raise InvalidRequest(f"grammar: {str(exc)[:300]}", FIELD) from exc


def _plain_text(found: re.Match[str]) -> str:
    """Return a text in escapes that the converter keeps: it breaks \\u, and takes `--` in a class for a difference."""
    text = found[0]
    if text.startswith("#"):
        return ""
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
