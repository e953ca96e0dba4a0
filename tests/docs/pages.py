"""The pages of the documentation: links, anchors, tables, and the blocks of commands with their marks."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
_PATTERNS = ("*.md", "docs/*.md", "helm/*.md", "build_engines/demo/*.md", "tests/*.md", "tests/**/README.md")
PAGES = sorted({str(path.relative_to(ROOT)) for pattern in _PATTERNS for path in ROOT.glob(pattern)})
_MARK = re.compile(r"<!-- (not run|tested): (.+) -->")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, and the mark in the comment before it."""

    page: str
    line: int
    language: str
    text: str
    mark: str  # "tested", "not run", or empty: tests/integration/test_shown_commands.py runs it
    reason: str  # the test files, or the reason why it is not run

    @property
    def place(self) -> str:
        """Page and line."""
        return f"{self.page}:{self.line}"


@functools.cache
def tokens(page: str) -> tuple[Token, ...]:
    """Return a page's tokens."""
    parser = MarkdownIt("commonmark").enable("table")
    return tuple(parser.parse((ROOT / page).read_text(encoding="utf-8")))


def links(page: str) -> Iterator[tuple[int, str]]:
    """Yield the targets of a page's links and pictures, with their lines."""
    for token in tokens(page):
        for child in token.children or ():
            if target := child.attrs.get("href") or child.attrs.get("src"):
                yield _line(token), str(target)


@functools.cache
def anchors(page: str) -> frozenset[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: list[str] = []
    for heading, text in zip(tokens(page), tokens(page)[1:], strict=False):
        if heading.type == "heading_open":
            words = "".join(child.content for child in text.children or ())
            found.append(re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-"))
    return frozenset(
        slug if slug not in found[:i] else f"{slug}-{found[:i].count(slug)}" for i, slug in enumerate(found)
    )


def blocks(page: str) -> Iterator[Block]:
    """Yield a page's fenced blocks."""
    for before, token in zip((None, *tokens(page)), tokens(page), strict=False):
        if token.type == "fence":
            found = _MARK.fullmatch(before.content.strip()) if before and before.type == "html_block" else None
            mark, reason = found.groups() if found else ("", "")
            yield Block(page, _line(token), token.info, token.content, mark, reason)


def cells(page: str, header: str) -> Iterator[tuple[int, Token]]:
    """Yield the cells below a header, in each table that has it, with their lines."""
    row: list[Token] = []
    column = None
    for token in tokens(page):
        match token.type:
            case "tr_open":
                row = []
            case "inline":
                row.append(token)
            case "thead_close":
                names = [each.content for each in row]
                column = names.index(header) if header in names else None
            case "tr_close" if column is not None:
                yield _line(row[column]), row[column]
            case "table_close":
                column = None


def code_spans(token: Token) -> list[str]:
    """Return the texts in code of a piece of a page."""
    return [child.content for child in token.children or () if child.type == "code_inline"]


def _line(token: Token) -> int:
    return (token.map or [0])[0] + 1
