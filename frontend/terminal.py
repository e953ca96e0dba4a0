"""Colours of text on a terminal."""

from __future__ import annotations

import os
from enum import IntEnum
from typing import TextIO


class Colour(IntEnum):
    """The numbers of ANSI's escape sequences."""

    BOLD = 1
    DIM = 2
    RED = 31
    GREEN = 32


def coloured(text: str, colour: Colour, stream: TextIO) -> str:
    """Return a text for a stream: in colour on a terminal, unless the variable NO_COLOR is set."""
    is_plain = os.environ.get("NO_COLOR") or not stream.isatty()
    return text if is_plain else f"\x1b[{colour}m{text}\x1b[0m"
