"""Tables for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table. Columns of numbers are aligned to the right."""
    lines = [tuple(header), *(tuple(row) for row in rows)]
    columns = list(zip(*lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    are_numbers = [all(cell[:1].isdigit() for cell in column[1:] if cell) for column in columns]
    for line in lines:
        cells = (
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(line, widths, are_numbers, strict=True)
        )
        yield "  ".join(cells).rstrip()


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield _markdown_row(header)
    yield _markdown_row(["---"] * len(header))
    yield from map(_markdown_row, rows)


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
