"""The text forms of tool calls, written so that their beginnings are recognized before they are whole."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from model_repository.tool_formats import DEEPSEEK, HERMES, LLAMA3_JSON, PLAIN

WHITE = " \t\r\n"

# Bounded, so that what is held back stays small and is recognized from its start each time more comes.
_PIECES = {" ": rf"[{WHITE}]{{0,64}}+", "@": r'(?P<name>[^"\\\x00-\x1f]{1,256}+)', "$": r'(?=["{])'}


class Form:
    """A text form. In its notation a space is any white space, `@` the name; `$` says that JSON arguments follow."""

    def __init__(self, notation: str) -> None:
        pieces = [_PIECES.get(character) or re.escape(character) for character in notation]
        beginning = ""
        for piece in reversed(pieces):
            beginning = f"(?:{piece}{beginning})?"
        self._whole = re.compile("".join(pieces))
        self._beginning = re.compile(beginning.replace("?P<name>", "?:"))

    def match(self, text: str) -> re.Match[str] | None:
        """Find the form at the start of a text."""
        return self._whole.match(text)

    def is_begun(self, text: str) -> bool:
        """Whether the text, all of it, could be the beginning of the form."""
        return self._beginning.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Syntax:
    """How a format's calls are read, which is more tolerant than how they are written."""

    markers: tuple[str, ...]  # what calls begin with, anywhere in a text; none: at the start of the answer only
    heads: tuple[Form, ...]  # up to the arguments
    tails: tuple[Form, ...]  # from the arguments to the end of the call
    end_marker: str = ""  # ends a call whose arguments never close
    closing: Form | None = None  # no content, behind a call

    def marker_start(self, text: str) -> int:
        """Return where a marker starts, or at the end of the text what may become one; else the text's length."""
        start = text.find("<")
        while start >= 0:
            rest = text[start : start + 32]
            if any(rest.startswith(marker) or marker.startswith(rest) for marker in self.markers):
                return start
            start = text.find("<", start + 1)
        return len(text)


# Keys are read in the order in which the formats write them: the name has to be known before arguments can stream.
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
    HERMES.name: _HERMES,
    PLAIN.name: _HERMES,
    LLAMA3_JSON.name: _LLAMA3_JSON,
    DEEPSEEK.name: _DEEPSEEK,
}
