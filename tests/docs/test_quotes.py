"""The messages that docs/troubleshooting.md quotes are in the code."""

from __future__ import annotations

from tests.docs.pages import cells, code_spans
from tests.docs.sources import code

PAGE = "docs/troubleshooting.md"
# Of the shell, of OpenAI's API, of models.
FOREIGN = {"conch: command not found", "https", "<think>"}


def test_each_quoted_message_is_one_of_the_product() -> None:
    """Changing parts of a message are `...`; the rest is written as in the code."""
    quotes = [(line, quote) for line, cell in cells(PAGE, "symptom") for quote in code_spans(cell)]
    assert len(quotes) > 40
    missing = [
        f"{PAGE}:{line}: {part}"
        for line, quote in quotes
        if quote not in FOREIGN
        for part in map(str.strip, quote.split("..."))
        if part not in code()
    ]
    assert missing == []
