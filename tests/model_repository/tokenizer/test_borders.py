"""A text in pieces has the same tokens as the whole text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from model_repository.tokenizer import borders
from model_repository.tokenizer.borders import MIN_CHARS, Borders
from tests.model_repository.tokenizer.models import byte_level, sentencepiece


def added(content: str = "<t>", *, normalized: bool = False, **others: Any) -> AddedToken:
    return AddedToken(content, normalized=normalized, **others)


LONG = "a" * MIN_CHARS


def test_a_text_is_cut_before_a_token_once_a_piece_is_long() -> None:
    cut = Borders([added()], {"<t>"})
    assert list(cut.pieces(f"{LONG}<t>b<t>{LONG}<t><t>")) == [LONG, f"<t>b<t>{LONG}", "<t><t>"]
    assert list(cut.pieces(LONG[1:] + "<t>b")) == [LONG[1:] + "<t>b"]


@pytest.mark.parametrize(
    "tokens",
    [
        [added(lstrip=True)],
        [added(rstrip=True)],
        [added(single_word=True)],
        [added(normalized=True)],
        [added(" <t>")],
        [added(), added("<t>>")],
        [added(), added("x<t>")],
        [added(), added("a<")],
        [added(), added(">b")],
        [added(), added("t")],
        [added("<t><"), added("x")],
    ],
)
def test_a_text_is_not_cut_before_a_token_that_depends_on_its_neighbours(tokens: list[AddedToken]) -> None:
    text = f"{LONG} <t>>{LONG}"
    assert list(Borders(tokens, {"<t>", " <t>", "<t><"}).pieces(text)) == [text]


def test_a_text_is_not_cut_before_other_strings() -> None:
    text = f"{LONG}<t>{LONG}<s>{LONG}"
    assert list(Borders([added(), added("<s>")], {"<s>", "<none>"}).pieces(text)) == [f"{LONG}<t>{LONG}", f"<s>{LONG}"]


_TOKENS = ["<t>", "<u>", "<l>", "<r>", "<w>", "<n>", "  ", "\n\n", "<u>>", "b<u"]
_FLAGS = {"<l>": "lstrip", "<r>": "rstrip", "<w>": "single_word", "<n>": "normalized"}
_NORMALIZER = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, {"type": "NFKC"}]}
DESCRIPTIONS = {
    "bytes": byte_level(_TOKENS),
    "words": byte_level(_TOKENS, merges=[("a", "b"), ("Ġ", "a"), ("<", "a")]) | {"normalizer": _NORMALIZER},
    **{space: sentencepiece(_TOKENS, space=space) for space in ("first", "always", "never", "prepend")},
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
@given(
    texts=st.lists(st.sampled_from([*_TOKENS, " ", "\n", "a", "b", "A", "é", "e\u0301", "ﬁ", "日", "🙂", "<", ">"])),
)
def test_the_tokens_of_the_pieces_are_those_of_the_whole_text(name: str, texts: list[str]) -> None:
    description = json.loads(json.dumps(DESCRIPTIONS[name]))
    for token in description["added_tokens"]:
        token |= {flag: token["content"] == content for content, flag in _FLAGS.items()}
    tokenizer = Tokenizer.from_str(json.dumps(description))
    text, cut = "".join(texts), Borders(tokenizer.get_added_tokens_decoder().values(), set(_TOKENS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(borders, "MIN_CHARS", 0)
        pieces = list(cut.pieces(text))
    assert "".join(pieces) == text
    assert len(pieces) - 1 == text.count("<t>"), "the only token that depends on nothing beside it"
    encoded = [token_id for piece in pieces for token_id in tokenizer.encode(piece, add_special_tokens=False).ids]
    assert encoded == tokenizer.encode(text, add_special_tokens=False).ids
