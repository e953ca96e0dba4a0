"""Markdown that comes in pieces, as a terminal shows it in the end."""

from __future__ import annotations

import io

import pytest
from markdown_it.token import Token

from frontend.cli import markdown
from frontend.cli.markdown import markdown_on

TEXT = """\
# Title

One line,
and <b>another</b> with [a link](http://example.org/page).

[1]: http://example.org/source

1. first

   ```python
   if True:

       pass
   ```

2. second

| a | b |
| - | - |
| 1 | 2 |

```
# no title

code
```
The end"""


def shown(*pieces: str) -> str:
    """Return the lines of a file that is no terminal: nothing is drawn twice there."""
    out = io.StringIO()
    with markdown_on(out) as write:
        for piece in pieces:
            write(piece)
    return "\n".join(line.strip() for line in out.getvalue().splitlines())


@pytest.mark.parametrize("num_chars", [1, 3, 50])
def test_pieces_of_any_length_give_the_same_text(num_chars: int) -> None:
    pieces = [TEXT[start : start + num_chars] for start in range(0, len(TEXT), num_chars)]
    assert shown(*pieces) == shown(TEXT)


def test_line_breaks_tags_and_addresses_are_shown() -> None:
    assert "[1]: http://example.org/source" in shown(TEXT)
    assert "One line,\nand <b>another</b> with a link (http://example.org/page)." in shown(TEXT)


def test_an_interrupted_answer_is_shown_as_far_as_it_came() -> None:
    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt), markdown_on(out) as write:
        write("one\n\ntw")
        raise KeyboardInterrupt
    assert out.getvalue().split() == ["one", "tw"]


@pytest.mark.parametrize("line", ["- a\n", "a\n", "> a\n", "\n", "| a | b |\n", "word\n\n"])
def test_a_long_block_is_parsed_a_few_times(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list was parsed as a whole at each of its lines."""
    parsed, parse = [], markdown._PARSER.parse

    def counted(text: str) -> list[Token]:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(markdown._PARSER, "parse", counted)
    lines = ["| - | - |\n", *[line] * 1000]
    shown(*lines)
    assert sum(map(len, parsed)) < 12 * len("".join(lines))
