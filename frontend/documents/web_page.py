"""HTML files: the text that a browser shows."""

from __future__ import annotations

import re

from selectolax.lexbor import LexborHTMLParser, LexborNode

from frontend.documents.document import Document, counted

# Elements inside a line; all others begin a line of their own, as those of unknown names mostly hold others.
_INLINE = frozenset(
    {"a", "abbr", "b", "bdi", "bdo", "big", "button", "cite", "code", "data", "dfn", "del", "em", "font", "i", "img"}
    | {
        "input",
        "ins",
        "kbd",
        "label",
        "mark",
        "q",
        "rp",
        "rt",
        "ruby",
        "s",
        "samp",
        "small",
        "span",
        "strike",
        "strong",
    }
    | {"sub", "sup", "td", "th", "time", "tt", "u", "var", "wbr"}
)
_BEFORE = {"li": "- ", "h1": "# ", "h2": "## ", "h3": "### ", "td": "\t", "th": "\t"}
_FRAMES = "iframe, object, embed"
_SCRIPTS = "script"
_HIDDEN = ", ".join(
    ["[hidden]"]
    + [f"[style*='{rule}' i]" for rule in ("display:none", "display: none", "visibility:hidden", "visibility: hidden")]
)
_NO_TEXT = "head, style, template, noscript, svg, math, canvas"
_SPACES = re.compile(r"\s+")


def read_web_page(text: str) -> Document:
    """Return the text of a page: a line for each block, and the white space of `pre`. Scripts are not run."""
    tree = LexborHTMLParser(text)
    title = tree.css_first("title")
    heading = [] if title is None else [" ".join(title.text().split())]
    left_out = []
    for selector, noun in ((_SCRIPTS, "script"), (_FRAMES, "frame"), (_HIDDEN, "hidden element")):
        left_out += counted(_remove(tree, selector), noun)
    _remove(tree, _NO_TEXT)
    shown = "\n".join(filter(None, [*heading, _text(tree.body)]))
    return Document("HTML", [shown] if shown else [], left_out)


def _remove(tree: LexborHTMLParser, selector: str) -> int:
    found = tree.css(selector)
    for node in found:
        node.decompose()
    return len(found)


def _text(body: LexborNode | None) -> str:
    """Return the lines of an element. It is walked without recursion: pages nest elements without a bound."""
    pieces = ["\n"]
    waiting: list[tuple[LexborNode | str, bool]] = [] if body is None else [(body, False)]
    while waiting:
        node, is_pre = waiting.pop()
        if not isinstance(node, str) and node.tag != "-text":
            waiting += _inside(node, is_pre)
            continue
        text = node if isinstance(node, str) else node.text_content or ""
        if not is_pre:
            text = _SPACES.sub(" ", text)
            text = text.lstrip(" ") if pieces[-1].endswith(("\n", " ")) else text
        if text and (text != "\n" or pieces[-1] != "\n"):
            pieces.append(text)
    lines = (line.rstrip() for line in "".join(pieces).split("\n"))
    return "\n".join(filter(None, lines))


def _inside(node: LexborNode, is_pre: bool) -> list[tuple[LexborNode | str, bool]]:
    """Return the content of an element in reverse order. The flag of a piece: its white space counts."""
    tag, alternative = node.tag or "", node.attributes.get("alt")
    if tag == "-comment":
        return []
    end = [("\n", True)] if tag not in _INLINE else []
    is_pre = is_pre or tag == "pre"
    inner = [(each, is_pre) for each in node.iter(include_text=True)]
    start = [(_BEFORE[tag], True)] if tag in _BEFORE else []
    described = [(f"[{alternative}]", False)] if tag == "img" and alternative else []
    return [*end, *described, *reversed(inner), *start, *end]
