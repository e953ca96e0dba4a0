"""Output without characters that steer a terminal: the texts of hubs, files and users are written to it too."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

# Control characters but tab and line feed, line separators, and those that change the direction of text.
STEERING = frozenset(
    {*range(32), *range(127, 160), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A)} - {*map(ord, "\t\n")}
)
_ESCAPES = {each: f"\\u{each:04x}" for each in STEERING}  # in JSON they mean the same characters


def escaped(text: str) -> str:
    """Return a text in which characters that steer a terminal are JSON's escapes."""
    return text.translate(_ESCAPES)


class EscapedOutput:
    """A stream of text that writes characters that steer a terminal as escapes.

    Args:
        stream: gets the text.
    """

    def __init__(self, stream: TextIO) -> None:
        self.unescaped = stream

    def write(self, text: str) -> int:
        """Write a text, and return its length."""
        self.unescaped.write(escaped(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write texts."""
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)


def escaped_output(stream: TextIO) -> TextIO:
    """Return a stream that writes to another one, and escapes."""
    return cast(TextIO, EscapedOutput(stream))


def unescaped(stream: TextIO) -> TextIO:
    """Return the stream below, for colours and lines that are drawn again."""
    return stream.unescaped if isinstance(stream, EscapedOutput) else stream


def escape_output() -> None:
    """Escape what this process prints and logs from now on. A terminal without Unicode shows `?`."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.stdout, sys.stderr = (escaped_output(unescaped(stream)) for stream in (sys.stdout, sys.stderr))
