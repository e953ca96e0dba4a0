"""Markdown on a terminal, rendered while it comes. A finished block stays as it is; the last one is drawn again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment

# Tags and definitions of links are shown as text: Markdown hides them.
_PARSER = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("reference")


class _Block:
    """A paragraph, a list or another part of a text, without blank lines around it.

    Args:
        max_lines: the last lines that are shown; 0: all.
    """

    def __init__(self, text: str, max_lines: int = 0) -> None:
        self.text = text
        self._max_lines = max_lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        markdown = Markdown("", hyperlinks=False)  # shows where a link leads
        markdown.parsed = _PARSER.parse(self.text)
        for child in itertools.chain.from_iterable(token.children or () for token in markdown.parsed):
            child.type = "hardbreak" if child.type == "softbreak" else child.type  # as the model has set the lines
        lines = console.render_lines(markdown, options.update(height=None), pad=False)
        shown = [index for index, line in enumerate(lines) if any(segment.text.strip() for segment in line)]
        for line in lines[shown[0] : shown[-1] + 1][-self._max_lines :] if shown else ():
            if line and not (line[-1].style and line[-1].style.bgcolor):  # code is filled up to the edge
                line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
            yield from (*line, Segment.line())


@contextmanager
def markdown_on(terminal: TextIO) -> Iterator[Callable[[str], None]]:
    """Give a function that writes a piece of Markdown."""
    console = Console(file=terminal)
    last = _Block("", max_lines=console.height - 1)
    space: tuple[str, ...] = ()  # above the next block
    next_length = 0.0  # characters of the last block at which it is parsed again

    def finish(text: str) -> None:
        nonlocal space
        console.print(*space, _Block(text), sep="\n")
        space = ("",)

    def write(piece: str) -> None:
        nonlocal next_length
        last.text += piece
        if "\n" in piece and len(last.text) >= next_length:
            *lines, rest = last.text.split("\n")
            starts = [token.map[0] for token in _PARSER.parse("\n".join(lines)) if token.map and not token.level]
            last.text = "\n".join([*lines[starts[-1] if starts else 0 :], rest])
            for start, end in itertools.pairwise(starts):
                finish("\n".join(lines[start:end]))
            # A block that goes on is parsed less and less often, so that a long one takes time for its length alone.
            next_length = len(last.text) * 1.25 if len(starts) < 2 else 0.0

    try:
        with Live(last, console=console, transient=True, refresh_per_second=10):
            yield write
        next_length = 0.0
        write("\n")
    finally:
        finish(last.text)
