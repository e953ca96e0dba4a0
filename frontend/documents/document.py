"""A document as the parts of a prompt."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec


class Unreadable(Exception):
    """The document cannot be read; the text is the rule that it breaks."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a document may have, and what its model reads."""

    max_pages: int
    max_chars: int  # of its text, and of its pictures in base64
    reads_pictures: bool  # the model does
    max_pictures: int  # of pages

    def check_pages(self, number: int, noun: str) -> None:
        """Refuse too many pages.

        Raises:
            Unreadable: names the number and the limit.
        """
        if number > self.max_pages:
            raise Unreadable(f"{number} {noun}: a document may have {self.max_pages} (--max-document-pages)")


class Picture(msgspec.Struct, frozen=True):
    """A page as a picture."""

    png: bytes


@dataclass(frozen=True, slots=True)
class Document:
    """The content of a document.

    Args:
        kind: for the first line, such as `PDF, 3 pages`.
        parts: texts and pictures, in their order.
        left_out: what the parts lack, such as `2 scripts`.
        hidden: what the parts have and a reader of the original does not see, such as `sheet Costs`.
    """

    kind: str
    parts: Sequence[str | Picture]
    left_out: Collection[str] = ()
    hidden: Collection[str] = ()

    def framed(self, name: str) -> list[str | Picture]:
        """Return the parts between a first line and a last line."""
        remarks = [("Left out", self.left_out), ("Hidden in the original", self.hidden)]
        first = f"File {name}: {self.kind}." + "".join(
            f" {label}: {', '.join(items)}." for label, items in remarks if items
        )
        return [f"[{first}]", *self.parts, f"[End of file {name}]"]


def printable(text: str, max_chars: int) -> str:
    """Return a text of the document, or its name, for one line of a prompt."""
    return " ".join("".join(each if each.isprintable() else " " for each in text).split())[:max_chars]


def counted(number: int, noun: str) -> list[str]:
    """Return a number of things as an item of a list: none if there are none."""
    return [f"{number} {noun}{'s' * (number > 1)}"] if number else []


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers in words, such as `1-3, 7`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ", ".join("-".join(map(str, span)) for span in spans)
