"""Compiles a grammar of llguidance to prove that it can be followed."""

from __future__ import annotations

import functools
import re

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from model_repository.structured_output.refusal import decline, refuse

# An ambiguous grammar takes time with the square of a row: 0.2 s a token at llguidance's own limit of 2,000. An object
# needs 4 items for each optional property, and its masks at most 400. Verbose errors would repeat the whole grammar.
MAX_ROW_ITEMS, MAX_MASK_ITEMS = 1_000, 10_000
LIMITS = LLParserLimits(max_items_in_row=MAX_ROW_ITEMS, step_max_items=MAX_MASK_ITEMS, verbose_errors=False)

_PLAIN_WORDS = {
    "NoExtension": "no text satisfies it",
    "Regex is empty": "schema: no text has its pattern, its format and its length together",
    "TooComplex": "too complex",
}


def check(grammar: str) -> None:
    """Compile a grammar and compute its first mask, over a vocabulary of single bytes.

    Raises:
        InvalidRequest: it is malformed or too complex, or no text satisfies it.
        Unsupported: llguidance would enforce only a part of it.
    """
    is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
    if is_error:
        refuse(short_message(messages[0]))
    if messages:
        decline(short_message(messages[0]))
    matcher = LLMatcher(_byte_tokenizer(), grammar, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    if matcher.is_error():
        refuse(short_message(matcher.get_error()))


def short_message(message: str) -> str:
    """Return the line of llguidance's error that names the mistake."""
    for theirs, ours in _PLAIN_WORDS.items():
        if theirs in message:
            return ours
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["unknown error"]
    line = next((line for line in lines if line.startswith("error: ")), lines[0]).removeprefix("error: ")
    line = line.replace("failed to compile JSON schema: ", "schema: ")
    return re.sub(r"^at [0-9]+[(][0-9]+[)]: (?=schema: )", "", line)[:300]


@functools.cache
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")
