"""Texts that a completion must not contain, and the tokens that would complete one of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from model_repository.engine.token_constraint import TokenConstraint

type TokenIds = NDArray[np.int64]


class TokenIndex:
    """A searchable vocabulary; one per engine, for one thread.

    Args:
        byte_table: the bytes of each token, empty for a token without text.
        vocab_size: the number of the model's logits.
    """

    def __init__(self, byte_table: Sequence[bytes], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.texts = [*byte_table[:vocab_size], *[b""] * (vocab_size - len(byte_table))]
        self._ends = np.fromiter(accumulate(map(len, self.texts)), dtype=np.int64)  # position in the joined text
        self._joined = np.frombuffer(b"".join(self.texts), dtype=np.uint8)
        order = sorted(range(vocab_size), key=self.texts.__getitem__)
        self._sorted = [self.texts[token_id] for token_id in order]
        self._order = np.array(order, dtype=np.int64)

    def starting_with(self, text: bytes) -> TokenIds:
        """Return the ids of the tokens that begin with a text, int64 [num_found]."""
        begin = bisect_left(self._sorted, text)
        end = bisect_right(self._sorted, text, lo=begin, key=lambda each: each[: len(text)])
        return self._order[begin:end]

    def equal_to(self, text: bytes) -> TokenIds:
        """Return the ids of the tokens with exactly this text, int64 [num_found]."""
        begin = bisect_left(self._sorted, text)
        return self._order[begin : bisect_right(self._sorted, text, lo=begin)]

    def containing(self, text: bytes) -> TokenIds:
        """Return the ids of the tokens that contain a text, int64 [num_found]. The text is not empty."""
        positions = np.flatnonzero(self._joined[: max(0, len(self._joined) - len(text) + 1)] == text[0])
        for offset in range(1, len(text)):
            positions = positions[self._joined[positions + offset] == text[offset]]
        token_ids = np.searchsorted(self._ends, positions, side="right")
        is_inside = positions + len(text) <= self._ends[token_ids]  # else it lies across two tokens
        found: TokenIds = np.unique(token_ids[is_inside])
        return found


class BadWords(TokenConstraint):
    """Keeps words out of a completion, besides a structured output.

    A word is any text. It counts anywhere in the completion, also within a longer word and across tokens. The end of
    the prompt does not count.

    Args:
        words: not empty.
    """

    def __init__(
        self, words: Sequence[str], index: TokenIndex, structured_output: TokenConstraint | None = None
    ) -> None:
        self._words = [word.encode() for word in words]
        self._index = index
        self._structured_output = structured_output
        self._rests: dict[bytes, set[bytes]] = {}  # beginning of a word to its rests
        self._has_no_word = np.ones(index.vocab_size, dtype=np.bool_)
        for word in self._words:
            self._has_no_word[index.containing(word)] = False
            for length in range(1, len(word)):
                self._rests.setdefault(word[:length], set()).add(word[length:])
        self._num_kept = max(map(len, self._words)) - 1
        self._tail = b""  # the longest end of the text that is the beginning of a word
        self._completing: dict[bytes, TokenIds] = {}  # the tokens that complete a word, by the tails so far

    def accept_token(self, token_id: int) -> bool:
        text = self._tail + self._index.texts[token_id]
        if any(word in text for word in self._words) or not (
            self._structured_output is None or self._structured_output.accept_token(token_id)
        ):
            return False
        self._tail = next(self._beginnings(text[max(0, len(text) - self._num_kept) :]), b"")
        return True

    def allowed(self) -> NDArray[np.bool_]:
        allowed = self._has_no_word.copy()
        if self._structured_output is not None:
            allowed &= self._structured_output.allowed()
        if self._tail:
            if self._tail not in self._completing:
                rests = set[bytes]().union(*(self._rests[each] for each in self._beginnings(self._tail)))
                self._completing[self._tail] = np.concatenate([self._index.starting_with(rest) for rest in rests])
            allowed[self._completing[self._tail]] = False
        return allowed

    def _beginnings(self, text: bytes) -> Iterator[bytes]:
        """Yield the ends of a text that are beginnings of words, the longest first."""
        return (end for offset in range(len(text)) if (end := text[offset:]) in self._rests)
