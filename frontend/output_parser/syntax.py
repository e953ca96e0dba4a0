"""The text forms of tool calls, and of their beginnings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from model_repository.tool_formats import DEEPSEEK, HERMES, LLAMA3_JSON, PLAIN

WHITE = " \t\r\n"

# Bounded: the parser matches the whole waiting text again with each piece.
_PIECES = {" ": rf"[{WHITE}]{{0,64}}+", "@": r'(?P<name>[^"\\\x00-\x1f]{1,256}+)', "$": r'(?=["{])'}


class Form:
    """A text form. In its notation a space is any white space, `@` is the name, `$` comes before JSON arguments."""

    def __init__(self, notation: str) -> None:
        pieces = [_PIECES.get(character) or re.escape(character) for character in notation]
        beginning = ""
        for piece in reversed(pieces):
            beginning = f"(?:{piece}{beginning})?"
        self._whole = re.compile("".join(pieces))
        self._beginning = re.compile(beginning.replace("?P<name>", "?:"))

    def match(self, text: str) -> re.Match[str] | None:
        """Match the form at the start of a text."""
        return self._whole.match(text)

    def is_begun(self, text: str) -> bool:
        """Whether the whole text can be the beginning of the form."""
        return self._beginning.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Syntax:
    """The calls of a format. The parser accepts more forms than the format writes."""

    markers: tuple[str, ...]  # begin calls; empty: calls only at the start of the answer
    heads: tuple[Form, ...]  # up to the arguments
    tails: tuple[Form, ...]  # from the arguments to the end of the call
    end_marker: str = ""  # ends a call whose arguments never close
    closing: Form | None = None  # after the calls; not content

    def marker_start(self, text: str) -> int:
        """Return the start of a marker, or of its possible beginning at the end of the text; else the text's length."""
        start = text.find("<")
        while start >= 0:
            rest = text[start : start + 32]
            if any(rest.startswith(marker) or marker.startswith(rest) for marker in self.markers):
                return start
            start = text.find("<", start + 1)
        return len(text)


# The name must come first: without it the arguments cannot stream.
_OBJECTS = ('{ "name" : "@" , "arguments" : $', '{ "name" : "@" , "parameters" : $')

_CALL, _CALL_END = HERMES.special_tokens
_HERMES = Syntax(
    markers=(_CALL,),
    heads=tuple(Form(f"{_CALL} {call}") for call in _OBJECTS),
    tails=(Form(" }"), Form(f" {_CALL_END}")),
    end_marker=_CALL_END,
    closing=Form(_CALL_END),
)
_LEADS = (" ", " ; ", f" {LLAMA3_JSON.answer_prefix} ", f" ; {LLAMA3_JSON.answer_prefix} ")
_LLAMA3_JSON = Syntax(
    markers=(),
    heads=tuple(Form(lead + call) for lead in _LEADS for call in _OBJECTS),
    tails=(Form(" }"),),
)
_BLOCKS_BEGIN, _BLOCK, _, _BLOCK_END, _BLOCKS_END = DEEPSEEK.special_tokens
_BLOCK_HEAD = f"{DEEPSEEK.before_name}@ ```json $"
_DEEPSEEK = Syntax(
    markers=(_BLOCKS_BEGIN, _BLOCK),
    heads=(Form(f"{_BLOCKS_BEGIN} {_BLOCK_HEAD}"), Form(_BLOCK_HEAD)),
    tails=(Form(f" ``` {_BLOCK_END}"), Form(f" {_BLOCK_END}")),
    end_marker=_BLOCK_END,
    closing=Form(_BLOCKS_END),
)
SYNTAXES: Mapping[str, Syntax] = {
    "": Syntax(markers=(), heads=(), tails=()),
    HERMES.name: _HERMES,
    PLAIN.name: _HERMES,
    LLAMA3_JSON.name: _LLAMA3_JSON,
    DEEPSEEK.name: _DEEPSEEK,
}
