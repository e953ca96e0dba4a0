"""What a parser finds in an answer, in the order of the text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call of the tool `name`; calls are counted from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    """A piece of a call's arguments, which are JSON text: the model's own characters, valid or not."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The model ended the call. A call without it was cut, or went on with something else than it has to."""

    index: int


type ToolEvent = ContentDelta | CallBegin | ArgumentsDelta | CallEnd
