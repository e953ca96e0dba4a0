"""Texts that a completion must not contain: which tokens would complete one."""

from __future__ import annotations

import functools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from model_repository.engine.token_constraint import TokenConstraint

NUM_CACHED_WORDS = 1024

type TokenIds = NDArray[np.int64]


class TokenIndex:
    """A vocabulary's texts, arranged to be searched; one per engine, for one thread.

    Args:
        byte_table: the bytes of each token, empty for one that is no text.
        vocab_size: how many tokens the model has logits for.
    """

    def __init__(self, byte_table: Sequence[bytes], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.texts = [*byte_table[:vocab_size], *[b""] * (vocab_size - len(byte_table))]
        self.containing = functools.lru_cache(maxsize=NUM_CACHED_WORDS)(self._containing)
        self._ends = array("q", accumulate(map(len, self.texts)))  # of each token's text in the joined one
        self._joined = b"".join(self.texts)
        order = sorted(range(vocab_size), key=self.texts.__getitem__)
        self._sorted = [self.texts[token_id] for token_id in order]
        self._order = np.array(order, dtype=np.int64)

    def starting_with(self, text: bytes) -> TokenIds:
        """Return the ids of the tokens that begin with a text, int64 [num_found]."""
        begin = bisect_left(self._sorted, text)
        end = bisect_right(self._sorted, text, lo=begin, key=lambda each: each[: len(text)])
        return self._order[begin:end]

    def _containing(self, text: bytes) -> TokenIds:
        """Return the ids of the tokens that a text stands in, int64 [num_found]."""
        return np.fromiter(self._found(text), dtype=np.int64)

    def _found(self, text: bytes) -> Iterator[int]:
        position = self._joined.find(text)
        while position >= 0:
            token_id = bisect_right(self._ends, position)
            end = self._ends[token_id]
            is_inside = position + len(text) <= end  # else it lies across two tokens
            if is_inside:
                yield token_id
            position = self._joined.find(text, end if is_inside else position + 1)


class BadWords(TokenConstraint):
    """What bad words, and a guide beside them, make of the tokens taken so far.

    A word is any text: it counts wherever it stands in the completion, also within a longer word and over the borders
    of tokens. What the prompt ends with does not count.

    Args:
        words: none of them empty.
        index: of the model's vocabulary.
        guide: what else the completion must satisfy.
    """

    def __init__(self, words: Sequence[str], index: TokenIndex, guide: TokenConstraint | None = None) -> None:
        self._words = [word.encode() for word in words]
        self._index = index
        self._guide = guide
        self._tail = b""  # of the text, as much as may be the beginning of a word
        self._num_kept = max(map(len, self._words)) - 1

    def take(self, token_id: int) -> bool:
        text = self._tail + self._index.texts[token_id]
        if any(word in text for word in self._words) or not (self._guide is None or self._guide.take(token_id)):
            return False
        self._tail = text[max(0, len(text) - self._num_kept) :]
        return True

    def allowed(self) -> NDArray[np.bool_]:
        allowed = (
            np.ones(self._index.vocab_size, dtype=np.bool_) if self._guide is None else self._guide.allowed().copy()
        )
        for word in self._words:
            allowed[self._index.containing(word)] = False
            for length in range(1, len(word)):
                if self._tail.endswith(word[:length]):
                    allowed[self._index.starting_with(word[length:])] = False
        return allowed
