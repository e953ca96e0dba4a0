"""Guesses the next tokens of a text by an earlier place with the same last tokens."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import cycle, islice, takewhile

import numpy as np
from numpy.typing import NDArray

NGRAM = 3  # tokens that two places must have in common
_IMAGE = -1  # stands for a token of an image: its own number has more than 64 bits
_MIXER = 0x9E3779B1  # odd, with bits in all places


class PromptLookup:
    """Guesses that a text goes on as it did behind the latest earlier place with the same last NGRAM tokens.

    Each token of the text is compared with its guess, whether it was drafted or not. A draft is as long as
    the number of guesses that were right in a row. So a text without repetitions has hardly any drafts, and drafts
    double while they are right.

    A token takes the same time at any length of the text. N-grams with the same hash share an entry of the table, which
    can only make a guess wrong.

    Args:
        token_ids: the text so far, not empty; those of images are negative, and not drafted.
        max_tokens: the length that the text can reach.
    """

    def __init__(self, token_ids: Sequence[int], max_tokens: int) -> None:
        self._text = array("q", [max(token_id, _IMAGE) for token_id in token_ids[:-1]])
        self._mask = (2 << max_tokens.bit_length()) - 1
        self._places = np.zeros(self._mask + 1, np.int32)  # hash of an n-gram to the position behind it; 0: none
        self._place = 0  # position of the guess for the next token; 0: no guess
        self._num_right = 0  # guesses in a row
        text = np.array(self._text, np.int64)
        hashes = _hash(text[:-2], text[1:-1], text[2:]) & self._mask
        self._places[hashes] = np.arange(NGRAM, NGRAM + len(hashes))  # of equal n-grams, the last wins
        self.append(max(token_ids[-1], _IMAGE))

    def append(self, token_id: int) -> None:
        """Append a token to the text."""
        text, place = self._text, self._place
        is_right = place > 0 and text[place] == token_id
        self._num_right = self._num_right + 1 if is_right else 0
        text.append(token_id)
        if len(text) >= NGRAM:
            index = _hash(*text[-NGRAM:]) & self._mask
            self._place = place + 1 if is_right else int(self._places[index])
            self._places[index] = len(text)

    def draft(self, max_tokens: int) -> list[int]:
        """Return the next tokens as far as they are likely, at most `max_tokens`."""
        num_tokens = max(0, min(max_tokens, self._num_right))
        guessed = self._text[self._place : self._place + num_tokens]
        repeated = islice(cycle(guessed), num_tokens)  # the place may be near the end of the text
        return list(takewhile(lambda token_id: token_id != _IMAGE, repeated))


def _hash[Ids: (int, NDArray[np.int64])](first: Ids, second: Ids, third: Ids) -> Ids:
    """Return hashes; their lower bits are the same for numbers and for arrays, which overflow."""
    hashes: Ids = (first * _MIXER + second) * _MIXER + third
    return hashes
