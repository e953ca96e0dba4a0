"""Cuts a text where its tokens do not depend on the other side, so that the tokens of a piece can be kept."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from tokenizers import AddedToken

MIN_CHARS = 1000  # of a piece: shorter ones are encoded almost as fast as they are found


class Borders:
    """Cuts before the strings of certain added tokens.

    A tokenizer finds its added tokens first, and encodes the text between two of them alone. So the pieces have the
    tokens of the whole text, if it finds the same added tokens in both. It may find others where the strings of two
    tokens overlap, or where a token depends on the text beside it: such tokens are no borders.

    Args:
        added_tokens: all of the tokenizer's.
        strings: of the tokens before which a text may be cut; those for which it would change tokens are left out.
    """

    def __init__(self, added_tokens: Collection[AddedToken], strings: Collection[str]) -> None:
        others = {token.content for token in added_tokens}
        cuttable = [
            token.content
            for token in added_tokens
            if token.content in strings
            and token.content == token.content.strip()
            and not (token.lstrip or token.rstrip or token.single_word or token.normalized)
            and not any(_overlap(token.content, other) for other in others)
        ]
        self._pattern = re.compile("|".join(map(re.escape, cuttable)) or r"(?!)")

    def pieces(self, text: str) -> Iterator[str]:
        """Yield the text in pieces of at least MIN_CHARS characters; only the last one may be shorter."""
        start = 0
        for match in self._pattern.finditer(text, MIN_CHARS):  # no piece is shorter
            if match.start() - start >= MIN_CHARS:
                yield text[start : match.start()]
                start = match.start()
        yield text[start:]


def _overlap(token: str, other: str) -> bool:
    """Whether a text may have both strings in common characters, beside equal strings at the same place."""
    if token != other and (token in other or other in token):
        return True
    lengths = range(1, min(len(token), len(other)))
    return any(token.endswith(other[:length]) or other.endswith(token[:length]) for length in lengths)
