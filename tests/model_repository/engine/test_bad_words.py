"""Bad words over the borders of tokens, against a search in the whole text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from model_repository.engine.bad_words import BadWords, TokenIndex

PIECES = [b"", *(bytes([byte]) for byte in range(256)), b"ab", b"aba", b"ba", b"caba", b" ab", "é".encode()]
WORDS = st.lists(st.text(alphabet="abcé ", min_size=1, max_size=5), min_size=1, max_size=4)
TOKENS = st.lists(st.sampled_from([b"a", b"b", b"c", b" ", b"ab", b"aba", b"ba", b"caba", b" ab"]), max_size=12)


def index_of(pieces: Sequence[bytes] = PIECES, vocab_size: int | None = None) -> TokenIndex:
    return TokenIndex(pieces, len(pieces) if vocab_size is None else vocab_size)


INDEX = index_of()


def accepted(words: Sequence[str], pieces: Sequence[bytes]) -> tuple[BadWords, bytes]:
    """Return the state after the accepted pieces, and their text."""
    bad_words, text = BadWords(words, INDEX), b""
    for piece in pieces:
        if bad_words.accept_token(PIECES.index(piece)):
            text += piece
    return bad_words, text


@given(st.lists(st.binary(max_size=3), min_size=1), st.binary(min_size=1, max_size=3))
def test_an_index_finds_the_tokens_that_begin_with_a_text_or_contain_it(pieces: list[bytes], text: bytes) -> None:
    index = index_of(pieces, len(pieces) + 2)  # logits that only pad the matrix are no text
    assert sorted(index.starting_with(text)) == [i for i, piece in enumerate(pieces) if piece.startswith(text)]
    assert list(index.containing(text)) == [i for i, piece in enumerate(pieces) if text in piece]


@given(WORDS, TOKENS)
def test_a_token_is_allowed_if_the_text_with_it_has_no_bad_word(words: list[str], pieces: list[bytes]) -> None:
    bad_words, text = accepted(words, pieces)
    expected = [not any(word.encode() in text + piece for word in words) for piece in PIECES]
    assert bad_words.allowed().tolist() == expected
    assert [accepted(words, [*pieces, piece])[1] != text for piece in PIECES[1:]] == expected[1:]


def test_many_long_words_cost_a_token_no_search_that_was_made_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token was compared with every beginning of every word: 256 long ones took 20 ms of each step."""
    index, num_searches = index_of(), 0
    search = TokenIndex.starting_with

    def counted(each: TokenIndex, text: bytes) -> NDArray[np.int64]:
        nonlocal num_searches
        num_searches += 1
        return search(each, text)

    monkeypatch.setattr(TokenIndex, "starting_with", counted)
    bad_words = BadWords([f"{'a' * 40}{number:03}" for number in range(256)], index)
    for _ in range(3):
        for piece in (b"a", b"b"):
            bad_words.allowed()
            assert bad_words.accept_token(PIECES.index(piece))
    assert num_searches == 256  # after `a`, one for each word; after `b` no word has begun
