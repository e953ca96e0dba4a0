"""The text forms of tool calls, and of their beginnings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from model_repository.notations import NAME, Notation
from model_repository.reasoning_formats import REASONING_FORMATS
from model_repository.tool_formats import (
    DEEPSEEK,
    DEEPSEEK_V4,
    DEEPSEEK_V31,
    DEEPSEEK_V32,
    GEMMA4,
    GLM,
    GLM47,
    GRANITE,
    HARMONY,
    HERMES,
    KIMI_K2,
    LFM2,
    LLAMA3_JSON,
    LLAMA4,
    MINIMAX_M2,
    MISTRAL_V3,
    MISTRAL_V11,
    MISTRAL_V13,
    NEMOTRON,
    PHI4,
    PLAIN,
    QWEN_XML,
    ToolFormat,
)

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


def _objects(*leads: str, first: str = "") -> tuple[Form, ...]:
    """Return the forms of a JSON object with the call, behind each lead.

    The name must come before the arguments: without it they cannot stream.

    Args:
        first: a member before the name.
    """
    keys = ("arguments", "parameters")
    return tuple(Form(f'{lead}{{ {first}"name" : "@" , "{key}" : $') for lead in leads for key in keys)


def _llama_json(prefix: str) -> Syntax:
    firsts = [f" {each}{bracket}" for each in ("", f"{prefix} ") for bracket in ("", "[ ")]
    nexts = [f" {between}{each}" for between in ("", "; ", ", ") for each in ("", f"{prefix} ")]
    typed = '"type" : "function" , '
    return Syntax(
        markers=None,
        heads=(),
        next_heads=_objects(*nexts) + _objects(*nexts, first=typed),
        first_heads=_objects(*firsts) + _objects(*firsts, first=typed),
        tails=(Form(" }"),),
        closings=(Form("]"), Form("<|python_end|>")),
    )


_CALL, _CALL_END = HERMES.special_tokens
_HERMES = Syntax(
    markers=_markers(_CALL),
    heads=_objects(f"{_CALL} "),
    tails=(Form(" }"), Form(f" {_CALL_END}")),
    end_marker=_CALL_END,
    closings=(Form(_CALL_END),),
)
_QWEN_XML = replace(
    _HERMES,
    markers=_markers(_CALL, "\n<function="),
    heads=(Form(f"{_CALL} <function=%>"),),
    next_heads=(Form("<function=%>"),),
    bare_heads=(Form("\n <function=%>"),),
    first_heads=(Form(" <function=%>"),),
    notation=QWEN_XML.notation,
    tails=(Form(" </function>"),),
)
_GLM = replace(_HERMES, heads=(Form(f"{_CALL} % ^"),), notation=GLM.notation, tails=(Form(f" {_CALL_END}"),))
_MINIMAX_HEAD = '<invoke name="%"> '
_MINIMAX_M2 = Syntax(
    markers=_markers(MINIMAX_M2.trigger, f"\n{MINIMAX_M2.before_name}"),
    heads=(Form(f"{MINIMAX_M2.trigger} {_MINIMAX_HEAD}"),),
    next_heads=(Form(_MINIMAX_HEAD),),
    bare_heads=(Form(f"\n {_MINIMAX_HEAD}"),),
    first_heads=(Form(f" {_MINIMAX_HEAD}"),),
    notation=MINIMAX_M2.notation,
    tails=(Form(" </invoke>"),),
    closings=(Form(MINIMAX_M2.after_calls),),
)
_LLAMA4 = Syntax(
    markers=None,
    heads=(),
    next_heads=(Form(", %( "),),
    first_heads=tuple(Form(f"{lead}[ %( ") for lead in (" ", f" {LLAMA4.answer_prefix} ")),
    notation=LLAMA4.notation,
    closings=(Form("]"), Form("<|python_end|>")),
    other=_llama_json(LLAMA4.answer_prefix),
)
_LFM2 = replace(
    _LLAMA4,
    markers=_markers(LFM2.trigger),
    heads=(Form(f"{LFM2.trigger} [ %( "),),
    first_heads=(),
    other=None,
    closings=(Form(f"] {LFM2.special_tokens[1]}"),),
)
_GEMMA4 = Syntax(
    markers=_markers(GEMMA4.trigger),
    heads=(Form("<|tool_call>call:%{ "),),
    notation=GEMMA4.notation,
    tails=(Form(" <tool_call|>"),),
)


_DSML = (DEEPSEEK_V32, DEEPSEEK_V4)  # only their outer markers differ, and either model may write both
_INVOKE = f'{DEEPSEEK_V32.before_name}%"> '
_DEEPSEEK_V32 = Syntax(
    markers=_markers(*(each.trigger for each in _DSML), DEEPSEEK_V32.before_name),
    heads=tuple(Form(f"{each.trigger} {_INVOKE}") for each in _DSML),
    next_heads=(Form(_INVOKE),),
    bare_heads=(Form(_INVOKE),),
    notation=DEEPSEEK_V32.notation,
    tails=(Form(f" {DEEPSEEK_V32.after_arguments.rstrip()}"),),
    closings=tuple(Form(each.after_calls) for each in _DSML),
)
_BLOCKS_BEGIN, _BLOCK, _, _BLOCK_END, _BLOCKS_END = DEEPSEEK.special_tokens
_BLOCK_HEAD = f"{DEEPSEEK.before_name}@ ```json $"
_DEEPSEEK = Syntax(
    markers=_markers(_BLOCKS_BEGIN, _BLOCK),
    heads=(Form(f"{_BLOCKS_BEGIN} {_BLOCK_HEAD}"),),
    next_heads=(Form(_BLOCK_HEAD),),
    bare_heads=(Form(_BLOCK_HEAD),),
    tails=(Form(f" ``` {_BLOCK_END}"), Form(f" {_BLOCK_END}")),
    end_marker=_BLOCK_END,
    closings=(Form(_BLOCKS_END),),
)
_V31_HEAD = f"{_BLOCK} @{DEEPSEEK_V31.before_arguments} $"
_DEEPSEEK_V31 = Syntax(
    markers=_markers(_BLOCKS_BEGIN, _BLOCK),
    heads=(Form(f"{_BLOCKS_BEGIN} {_V31_HEAD}"),),
    next_heads=(Form(_V31_HEAD),),
    bare_heads=(Form(_V31_HEAD),),
    tails=(Form(f" {_BLOCK_END}"),),
    end_marker=_BLOCK_END,
    closings=(Form(_BLOCKS_END),),
)
_MISTRAL_V13 = Syntax(
    markers=_markers(MISTRAL_V13.trigger),
    heads=(Form(f"{MISTRAL_V13.before_name}@{MISTRAL_V13.before_arguments} $"),),
)
_V11_ID = f"{MISTRAL_V11.before_number}#"
_V11_HEAD = Form(f"{MISTRAL_V11.before_name}@{_V11_ID}{MISTRAL_V11.before_arguments} $")
_MISTRAL_V11 = replace(_MISTRAL_V13, heads=(_V11_HEAD,), bare_heads=_MISTRAL_V13.heads)
_SECTION, _, _KIMI_ARGUMENTS, _KIMI_CALL_END, _SECTION_END = KIMI_K2.special_tokens
_KIMI_HEAD = f"{KIMI_K2.before_name}@{KIMI_K2.before_number}# {_KIMI_ARGUMENTS} $"
_KIMI_K2 = Syntax(
    markers=_markers(_SECTION, KIMI_K2.before_name),
    heads=(Form(f"{_SECTION} {_KIMI_HEAD}"),),
    next_heads=(Form(_KIMI_HEAD),),
    bare_heads=(Form(_KIMI_HEAD),),
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


def _ended_list(tool_format: ToolFormat) -> Syntax:
    begin, end = tool_format.special_tokens
    closings = (Form(f"] {end}"), Form(end))
    heads = _objects(f"{begin} [ ")
    return replace(_GRANITE, markers=_markers(begin), heads=heads, end_marker=end, closings=closings)


_END = REASONING_FORMATS["harmony"].end
_HARMONY = Syntax(markers=_markers(_END), heads=(), end_marker=_END)
HEADLESS = replace(_HARMONY, markers=_markers(*HARMONY.special_tokens))  # a message with an unreadable head
SYNTAXES: Mapping[str, Syntax] = {
    "": Syntax(markers=None, heads=()),
    HERMES.name: _HERMES,
    PLAIN.name: _HERMES,
    QWEN_XML.name: _QWEN_XML,
    GLM.name: _GLM,
    GLM47.name: replace(_GLM, notation=GLM47.notation),
    MINIMAX_M2.name: _MINIMAX_M2,
    LLAMA4.name: _LLAMA4,
    LFM2.name: _LFM2,
    GEMMA4.name: _GEMMA4,
    DEEPSEEK_V32.name: _DEEPSEEK_V32,
    DEEPSEEK_V4.name: _DEEPSEEK_V32,
    LLAMA3_JSON.name: _llama_json(LLAMA3_JSON.answer_prefix),
    DEEPSEEK.name: _DEEPSEEK,
    DEEPSEEK_V31.name: _DEEPSEEK_V31,
    MISTRAL_V3.name: _MISTRAL_V3,
    MISTRAL_V11.name: _MISTRAL_V11,
    MISTRAL_V13.name: _MISTRAL_V13,
    KIMI_K2.name: _KIMI_K2,
    GRANITE.name: _GRANITE,
    PHI4.name: _ended_list(PHI4),
    NEMOTRON.name: _ended_list(NEMOTRON),
    HARMONY.name: _HARMONY,
}
