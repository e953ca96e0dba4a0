"""Colours of text on a terminal."""

from __future__ import annotations

import os
from enum import IntEnum
from typing import TextIO

from model_repository.system.terminal_text import escaped, unescaped


class Colour(IntEnum):
    """The numbers of ANSI's escape sequences."""

    BOLD = 1
    DIM = 2
    RED = 31
    GREEN = 32


def write_coloured(text: str, colour: Colour, stream: TextIO) -> None:
    """Write a text: in colour on a terminal, unless the variable NO_COLOR is set."""
    if os.environ.get("NO_COLOR") or not stream.isatty():
        stream.write(text)
    else:
        unescaped(stream).write(f"\x1b[{colour}m{escaped(text)}\x1b[0m")


def print_error(error: object, stream: TextIO) -> None:
    """Write the line of an error."""
    write_coloured("error:", Colour.RED, stream)
    stream.write(f" {error}\n")
    stream.flush()
