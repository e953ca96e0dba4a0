"""The parts of an answer in the order of the text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text of the model's thinking, without its markers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """The beginning of a call of the tool `name`; `index` counts from 0."""

    index: int
    name: str
    is_custom: bool = False  # the arguments are one text, the custom tool's input


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """A piece of a call's arguments: the model's text, valid JSON or not; or a piece of a custom tool's input."""

    index: int
    text: str
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of a call. A call without an end was cut, or is malformed."""

    index: int


type CallDelta = CallBegin | ArgumentsDelta | CallEnd
type OutputDelta = TextDelta | ReasoningDelta | CallDelta
