"""The text forms of tool calls, and of their beginnings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from model_repository.notations import NAME, Notation
from model_repository.reasoning_formats import REASONING_FORMATS
from model_repository.tool_formats import HARMONY, TOOL_FORMATS, ToolFormat

WHITE = " \t\r\n"

# Bounded: the parser matches the whole waiting text again with each piece.
_PLAIN_NAME = f"(?P<name>{NAME}+)"
_PIECES = {" ": rf"[{WHITE}]{{0,64}}+", "#": r"[0-9]{1,9}+", "$": r'(?=["{])', "^": "(?=<)", "%": _PLAIN_NAME}


class Form:
    """A text form. In its notation a space is any white space, `#` is a number, `$` comes before JSON arguments,
    and `^` before a tag.

    `@` is the name, which ends where the rest of the form matches first, and does not contain what precedes it. `%` is
    a name that stands without quotes.
    """

    def __init__(self, notation: str) -> None:
        pieces = [_PIECES.get(character) or re.escape(character) for character in notation]
        if "@" in notation:
            place = notation.index("@")
            lead, rest = "".join(pieces[:place]), "".join(pieces[place + 1 :])
            pieces[place] = rf'(?P<name>(?:(?!{lead}|{rest})[^"\\\x00-\x1f]){{1,256}}+)'
        self._whole = re.compile("".join(pieces))
        if "@" in notation:
            pieces[place] = r'[^"\\\x00-\x1f]{1,256}'  # may end before any beginning of the rest
        self._beginning = re.compile(_beginning(pieces))

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

    markers: re.Pattern[str] | None  # begin calls; None: there are none behind text
    heads: tuple[Form, ...]  # up to the arguments
    next_heads: tuple[Form, ...] = ()  # of a call without marker that follows another
    bare_heads: tuple[Form, ...] = ()  # of a call without its outer marker; name an offered tool, else they are text
    first_heads: tuple[Form, ...] = ()  # the same, of a call without any marker that begins the answer
    notation: Notation | None = None  # of the arguments; None: JSON
    tails: tuple[Form, ...] = ()  # from the arguments to the end of the call; empty: they end it
    end_marker: str = ""  # also ends a call whose arguments are incomplete
    closings: tuple[Form, ...] = ()  # after the calls; not content
    other: Syntax | None = None  # that of an answer that begins in its form

    def marker_start(self, text: str, begin: int = 0) -> int:
        """Return the start of a marker, or of its possible beginning at the end of the text; else the text's length.

        Args:
            begin: of the search.
        """
        found = self.markers.search(text, begin) if self.markers else None
        return found.start() if found else len(text)


def _markers(*markers: str) -> re.Pattern[str]:
    patterns = [re.escape(marker) for marker in markers]
    for marker in markers:
        first, *others = map(re.escape, marker)
        patterns.append(rf"{first}{_beginning(others)}\Z")
    return re.compile("|".join(patterns))


def _call_head(tool_format: ToolFormat, *, has_number: bool = True) -> str:
    """Return the notation of a call up to its arguments."""
    is_json, before_arguments = tool_format.notation is None, tool_format.before_arguments
    number = f"{tool_format.before_number}#" if tool_format.before_number and has_number else ""
    behind = "$" if is_json else "" if before_arguments.strip() else "^"
    return f"{tool_format.before_name}{'@' if is_json else '%'}{number}{before_arguments} {behind}"


def _tokens(tool_format: ToolFormat) -> list[str]:
    """Return the special tokens that are marks; another one is a part of a tag."""
    return [token for token in tool_format.special_tokens if token[0] in "<["]


def _forms(tool_format: ToolFormat, *texts: str, line: str = "") -> tuple[Form, ...]:
    """Return the forms of written texts: white space may be left out, and may stand beside a mark.

    Args:
        tool_format: has the marks.
        texts: a JSON object in them names its arguments `arguments` or `parameters`; behind the name, as a call without
            its name cannot stream.
        line: a line break that must come first.
    """
    marks = re.compile(rf"\s*({'|'.join([*map(re.escape, _tokens(tool_format)), '[][{},;]', '(?<="):'])})\s*")
    keys = ('"arguments"', '"parameters"')
    spelled = dict.fromkeys(re.sub("|".join(keys), key, text) for text in texts if text for key in keys)
    return tuple(Form(line + re.sub(r"\s+", " ", marks.sub(r" \1 ", text))) for text in spelled)


def _syntax(tool_format: ToolFormat) -> Syntax:
    """Derive the syntax from the text that the format writes."""
    forms = partial(_forms, tool_format)
    notation, head, between = tool_format.notation, _call_head(tool_format), tool_format.between_calls
    # The reader of literals reads the bracket, too.
    after_arguments = tool_format.after_arguments[1 if notation and notation.quote else 0 :].strip()
    tail, _, closing = after_arguments.partition("\n")
    behind = after_arguments + tool_format.after_calls
    end_marker = min((token for token in _tokens(tool_format) if token in behind), key=behind.index, default="")
    after_calls = [each.after_calls for each in (tool_format, *tool_format.other_forms)]
    syntax = Syntax(
        markers=None,
        heads=(),
        next_heads=forms(between + head) if between.strip() else (),
        notation=notation,
        tails=forms(*(f" {end}" for end in (tail, "" if notation else end_marker) if end and end in after_arguments)),
        end_marker=tail if notation else end_marker,
        closings=forms(closing, *after_calls, end_marker, tool_format.also_ends),
    )
    if not tool_format.trigger:
        return _without_marker(tool_format, syntax)
    outer = [text for text in (tool_format.before_calls, tool_format.also_begins) if text] or [""]
    markers = [tool_format.trigger, *(text.strip() for text in outer[1:])]
    syntax = replace(syntax, heads=forms(*(begin + head for begin in outer)))
    if tool_format.before_number:
        syntax = replace(syntax, bare_heads=forms(_call_head(tool_format, has_number=False)))
    for bare in tool_format.other_forms:
        line, head = "" if bare.is_trigger_special else "\n", f" {_call_head(bare)}"
        markers.append(line + bare.trigger)
        syntax = replace(
            syntax,
            next_heads=forms(head),
            bare_heads=forms(head, line=line),
            first_heads=forms(head) if line else (),
        )
    return replace(syntax, markers=_markers(*markers))


def _without_marker(tool_format: ToolFormat, syntax: Syntax) -> Syntax:
    """Return the syntax of calls that begin an answer, and nothing else does."""
    forms = partial(_forms, tool_format)
    written = [each for each in (tool_format, *tool_format.other_forms) if each.notation is tool_format.notation]
    heads = [_call_head(each) for each in written]
    prefixes = ("", tool_format.answer_prefix)
    between = [*(each.between_calls for each in written), *([""] if tool_format.notation is None else [])]
    others = {each.name for each in tool_format.other_forms} - {tool_format.name}
    other = replace(TOOL_FORMATS[others.pop()], answer_prefix=tool_format.answer_prefix) if others else None
    return replace(
        syntax,
        first_heads=forms(*map("".join, product(" ", prefixes, {each.before_calls for each in written}, heads))),
        next_heads=forms(*map("".join, product(between, prefixes, heads))),
        other=_syntax(other) if other else None,
    )


_END = REASONING_FORMATS["harmony"].end
_HARMONY = Syntax(markers=_markers(_END), heads=(), end_marker=_END)
HEADLESS = replace(_HARMONY, markers=_markers(*HARMONY.special_tokens))  # a message with an unreadable head
SYNTAXES: Mapping[str, Syntax] = {
    **{name: _syntax(tool_format) for name, tool_format in TOOL_FORMATS.items()},
    HARMONY.name: _HARMONY,
    "": Syntax(markers=None, heads=()),
}
