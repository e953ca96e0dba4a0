"""Tables for a terminal and for Markdown."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence

_GAP = "  "


def terminal_width() -> float:
    """Return the characters of a line on the terminal that standard output is, if it is one."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf


def text_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], width: float = math.inf, dispensable: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the lines of a table. Columns of numbers are aligned to the right.

    Args:
        width: characters of a line. Wider tables lose columns.
        dispensable: heads of the columns that may go, the first one first.
    """
    columns = list(zip(tuple(header), *(tuple(row) for row in rows), strict=True))
    for head in dispensable:
        if sum(max(map(len, column)) + len(_GAP) for column in columns) - len(_GAP) > width:
            columns = [column for column in columns if column[0] != head]
    widths = [max(map(len, column)) for column in columns]
    are_numbers = [all(cell[:1].isdigit() for cell in column[1:] if cell) for column in columns]
    for line in zip(*columns, strict=True):
        cells = (
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(line, widths, are_numbers, strict=True)
        )
        yield _GAP.join(cells).rstrip()


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield _markdown_row(header)
    yield _markdown_row(["---"] * len(header))
    yield from map(_markdown_row, rows)


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
