"""The text forms of tool calls, and of their beginnings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from model_repository.tool_formats import (
    DEEPSEEK,
    DEEPSEEK_V31,
    GRANITE,
    HERMES,
    KIMI_K2,
    LLAMA3_JSON,
    MISTRAL_V3,
    MISTRAL_V11,
    MISTRAL_V13,
    PHI4,
    PLAIN,
)

WHITE = " \t\r\n"

# Bounded: the parser matches the whole waiting text again with each piece.
_PIECES = {" ": rf"[{WHITE}]{{0,64}}+", "#": r"[0-9]{1,9}+", "$": r'(?=["{])'}


class Form:
    """A text form. In its notation a space is any white space, `#` is a number, and `$` comes before JSON arguments.

    `@` is the name, which ends where the rest of the form matches first.
    """

    def __init__(self, notation: str) -> None:
        pieces = [_PIECES.get(character) or re.escape(character) for character in notation]
        if "@" in notation:
            place = notation.index("@")
            rest = "".join(pieces[place + 1 :])
            pieces[place] = rf'(?P<name>(?:(?!{rest})[^"\\\x00-\x1f]){{1,256}}+)'
        self._whole = re.compile("".join(pieces))
        self._beginning = re.compile(_beginning(pieces).replace("?P<name>", "?:"))

    def match(self, text: str) -> re.Match[str] | None:
        """Match the form at the start of a text."""
        return self._whole.match(text)

    def is_begun(self, text: str) -> bool:
        """Whether the whole text can be the beginning of the form."""
        return self._beginning.fullmatch(text) is not None


def _beginning(pieces: Sequence[str]) -> str:
    """Return the pattern of all beginnings of a form."""
    beginning = ""
    for piece in reversed(pieces):
        beginning = f"(?:{piece}{beginning})?"
    return beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class Syntax:
    """The calls of a format. The parser accepts more forms than the format writes."""

    markers: re.Pattern[str] | None  # begin calls; None: calls only at the start of the answer
    heads: tuple[Form, ...]  # up to the arguments
    next_heads: tuple[Form, ...] = ()  # of a call without marker that follows another
    tails: tuple[Form, ...] = ()  # from the arguments to the end of the call; empty: they end it
    end_marker: str = ""  # also ends a call whose arguments are incomplete
    closings: tuple[Form, ...] = ()  # after the calls; not content

    def marker_start(self, text: str) -> int:
        """Return the start of a marker, or of its possible beginning at the end of the text; else the text's length."""
        found = self.markers.search(text) if self.markers else None
        return found.start() if found else len(text)


def _markers(*markers: str) -> re.Pattern[str]:
    patterns = [re.escape(marker) for marker in markers]
    for marker in markers:
        first, *others = map(re.escape, marker)
        patterns.append(rf"{first}{_beginning(others)}\Z")
    return re.compile("|".join(patterns))


def _objects(*leads: str) -> tuple[Form, ...]:
    """Return the forms of a JSON object with the call, behind each lead.

    The name must come first: without it the arguments cannot stream.
    """
    return tuple(Form(f'{lead}{{ "name" : "@" , "{key}" : $') for lead in leads for key in ("arguments", "parameters"))


_CALL, _CALL_END = HERMES.special_tokens
_HERMES = Syntax(
    markers=_markers(_CALL),
    heads=_objects(f"{_CALL} "),
    tails=(Form(" }"), Form(f" {_CALL_END}")),
    end_marker=_CALL_END,
    closings=(Form(_CALL_END),),
)
_LLAMA3_HEADS = _objects(" ", " ; ", f" {LLAMA3_JSON.answer_prefix} ", f" ; {LLAMA3_JSON.answer_prefix} ")
_LLAMA3_JSON = Syntax(markers=None, heads=_LLAMA3_HEADS, next_heads=_LLAMA3_HEADS, tails=(Form(" }"),))
_BLOCKS_BEGIN, _BLOCK, _, _BLOCK_END, _BLOCKS_END = DEEPSEEK.special_tokens
_BLOCK_HEAD = f"{DEEPSEEK.before_name}@ ```json $"
_DEEPSEEK = Syntax(
    markers=_markers(_BLOCKS_BEGIN, _BLOCK),
    heads=(Form(f"{_BLOCKS_BEGIN} {_BLOCK_HEAD}"), Form(_BLOCK_HEAD)),
    tails=(Form(f" ``` {_BLOCK_END}"), Form(f" {_BLOCK_END}")),
    end_marker=_BLOCK_END,
    closings=(Form(_BLOCKS_END),),
)
_V31_HEAD = f"{_BLOCK} @{DEEPSEEK_V31.before_arguments} $"
_DEEPSEEK_V31 = Syntax(
    markers=_markers(_BLOCKS_BEGIN),
    heads=(Form(f"{_BLOCKS_BEGIN} {_V31_HEAD}"),),
    next_heads=(Form(_V31_HEAD),),
    tails=(Form(f" {_BLOCK_END}"),),
    end_marker=_BLOCK_END,
    closings=(Form(_BLOCKS_END),),
)
_MISTRAL_V13 = Syntax(
    markers=_markers(MISTRAL_V13.trigger),
    heads=(Form(f"{MISTRAL_V13.before_name}@{MISTRAL_V13.before_arguments} $"),),
)
_V11_ID = f"{MISTRAL_V11.before_number}#"
_MISTRAL_V11 = replace(
    _MISTRAL_V13, heads=(Form(f"{MISTRAL_V11.before_name}@{_V11_ID}{MISTRAL_V11.before_arguments} $"),)
)
_SECTION, _, _KIMI_ARGUMENTS, _KIMI_CALL_END, _SECTION_END = KIMI_K2.special_tokens
_KIMI_HEAD = f"{KIMI_K2.before_name}@{KIMI_K2.before_number}# {_KIMI_ARGUMENTS} $"
_KIMI_K2 = Syntax(
    markers=_markers(_SECTION),
    heads=(Form(f"{_SECTION} {_KIMI_HEAD}"),),
    next_heads=(Form(_KIMI_HEAD),),
    tails=(Form(f" {_KIMI_CALL_END}"),),
    end_marker=_KIMI_CALL_END,
    closings=(Form(_SECTION_END),),
)
_MISTRAL_V3 = Syntax(
    markers=_markers(MISTRAL_V3.trigger),
    heads=_objects(f"{MISTRAL_V3.trigger} [ "),
    next_heads=_objects(" , "),
    tails=(Form(" }"),),
    closings=(Form("]"),),
)
_GRANITE = replace(
    _MISTRAL_V3,
    markers=_markers(GRANITE.trigger),
    heads=_objects(f"{GRANITE.trigger} [ "),
)
_PHI4_END = PHI4.special_tokens[1]
_PHI4 = replace(_GRANITE, end_marker=_PHI4_END, closings=(Form(f"] {_PHI4_END}"), Form(_PHI4_END)))
SYNTAXES: Mapping[str, Syntax] = {
    "": Syntax(markers=None, heads=()),
    HERMES.name: _HERMES,
    PLAIN.name: _HERMES,
    LLAMA3_JSON.name: _LLAMA3_JSON,
    DEEPSEEK.name: _DEEPSEEK,
    DEEPSEEK_V31.name: _DEEPSEEK_V31,
    MISTRAL_V3.name: _MISTRAL_V3,
    MISTRAL_V11.name: _MISTRAL_V11,
    MISTRAL_V13.name: _MISTRAL_V13,
    KIMI_K2.name: _KIMI_K2,
    GRANITE.name: _GRANITE,
    PHI4.name: _PHI4,
}
