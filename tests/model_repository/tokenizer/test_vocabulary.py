"""Text to token ids, with and without added tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Encoding, Tokenizer

from model_repository.errors import InvalidRequest
from model_repository.tokenizer.borders import MIN_CHARS
from model_repository.tokenizer.vocabulary import Vocabulary
from tests.model_repository.tokenizer.models import DEMO_FILES, byte_level, sentencepiece

DEMO = Vocabulary(DEMO_FILES.tokenizer)


def vocabulary(description: dict[str, Any]) -> Vocabulary:
    return Vocabulary(Tokenizer.from_str(json.dumps(description)))


def strings(vocab: Vocabulary, token_ids: list[int]) -> list[str]:
    return [vocab.token_string(token_id) for token_id in token_ids]


def parts(text: str, token: str = "<t>") -> list[tuple[str, bool]]:
    """Return a text's parts between and at the strings of a token."""
    found = [part for piece in text.split(token) for part in ((piece, False), (token, True))][:-1]
    return [(part, is_token) for part, is_token in found if part]


@pytest.mark.parametrize("token_id", [-1, 3072, 2**31 - 1])
def test_an_id_outside_the_vocabulary_is_refused(token_id: int) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DEMO.check((5, token_id), "input_ids")
    assert caught.value.message() == f"[invalid_value] input_ids: {token_id} is not a token: they are 0 to 3071"


def test_an_id_that_only_the_post_processor_knows_is_refused() -> None:
    description = sentencepiece()
    description["post_processor"]["special_tokens"]["<s>"]["ids"] = [9999]
    vocab = vocabulary(description)
    with pytest.raises(InvalidRequest, match="9999 is not a token"):
        vocab.check_encoded(vocab.encode("a"), "text_input")


def test_a_token_has_a_string_in_the_vocabularys_own_form() -> None:
    assert strings(DEMO, DEMO.encode("a b<|im_end|>")) == ["a", "Ġb", "<|im_end|>"]
    assert DEMO.token_string(10**6) == ""


@pytest.mark.parametrize(("bos", "first"), [(True, (1,)), (False, ())])
def test_the_first_tokens_of_every_prompt_are_known(bos: bool, first: tuple[int, ...]) -> None:
    assert vocabulary(sentencepiece(bos=bos)).first_ids == first


# --- plain text -----------------------------------------------------------------------------------------------------


def test_a_vocabulary_that_lists_its_special_tokens_does_not_give_them_to_text() -> None:
    description = byte_level(["<s>"], merges=[("<", "s"), ("<s", ">")])
    description["added_tokens"][0]["id"] = description["model"]["vocab"]["<s>"]
    vocab = vocabulary(description)
    assert strings(vocab, vocab.encode_plain("<s>")) == ["<s", ">"]


def test_an_added_token_of_spaces_is_text_like_any_other() -> None:
    """Of some vocabularies runs of spaces or line ends are added tokens: plain text lost them."""
    vocab = vocabulary(byte_level(["<t>", "\n\n", "  "]))
    assert vocab.control_tokens == {"<t>"}
    assert strings(vocab, vocab.encode_plain("a\n\n  b<t>")) == ["a", "\n\n", "  ", "b", "<", "t", ">"]


def test_plain_text_needs_no_second_copy_of_the_model() -> None:
    """Three copies of Gemma's 262,144 tokens took 5 s of each load."""
    tokenizer = Tokenizer.from_str(json.dumps(byte_level(["<s>"], merges=[("a", "b")])))
    vocab = Vocabulary(tokenizer)
    assert strings(vocab, vocab.encode_plain("ab<s>")) == ["ab", "<", "s", ">"]
    tokenizer.model.dropout = 1.0  # no merges
    assert strings(vocab, vocab.encode_plain("ab")) == ["a", "b"]


@pytest.mark.parametrize("space", ["first", "always", "never", "prepend"])
def test_a_text_can_be_encoded_without_the_space_of_a_prompts_beginning(space: str) -> None:
    vocab = vocabulary(sentencepiece(space=space))
    assert strings(vocab, vocab.encode_plain("a b", add_space=False)) == ["a", "▁b"]
    assert strings(vocab, vocab.encode_plain("a b")) == ["a" if space == "never" else "▁a", "▁b"]


# --- long texts -----------------------------------------------------------------------------------------------------


class CountedTokenizer:
    """Counts the texts that it encodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.texts: list[str] = []

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[Encoding]:
        self.texts += texts
        return self._tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize("is_marked", [False, True])
def test_a_long_text_is_encoded_once_for_each_owner(is_marked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    vocab = vocabulary(byte_level(["<t>"]))
    counted = CountedTokenizer(vocab._tokenizer)
    monkeypatch.setattr(vocab, "_plain" if is_marked else "_tokenizer", counted)
    long, short = "a" * MIN_CHARS, "a" * (MIN_CHARS - 1)

    def ids(text: str, owner: str) -> list[int]:
        counted.texts.clear()
        encoded = vocab.encode_parts([(text, False)], owner) if is_marked else vocab.encode_pieces([text], owner)
        return [*encoded]

    for owner in ("one", "other"):
        assert ids(long, owner) == vocab.encode_plain(long, add_space=False) and counted.texts == [long]
        assert ids(long, owner) == vocab.encode_plain(long, add_space=False) and counted.texts == []
        assert [ids(short, owner), ids(short, owner)] and counted.texts == [short]


@pytest.mark.parametrize("text", ["a" * MIN_CHARS, " " * MIN_CHARS])
def test_the_same_text_at_other_places_has_other_tokens(text: str) -> None:
    """The first part gets a space, and a parsed text may contain added tokens."""
    vocab = vocabulary(sentencepiece(["<t>"], bos=False))
    text += "<t>"
    for _ in range(2):
        assert vocab.encode_pieces([text]) == vocab.encode(text)
        assert vocab.encode_parts([(text, False)]) == vocab.encode_plain(text)
        later = vocab.encode_parts([("<t>", True), (text, False)])
        assert later == [vocab.added_id("<t>"), *vocab.encode_plain(text, add_space=False)]


# --- parts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a b<t>a<t><t> b", "<t>a", "a", " a<t>  b "])
@pytest.mark.parametrize("space", ["first", "always", "never", "prepend"])
def test_parts_are_encoded_like_the_whole(text: str, space: str) -> None:
    """Every part got the space that belongs only before the first."""
    vocab = vocabulary(sentencepiece(["<t>"], space=space, bos=False))
    assert vocab.encode_parts(parts(text)) == vocab.encode(text)


@pytest.mark.parametrize("side", ["lstrip", "rstrip"])
@pytest.mark.parametrize("text", ["a <t> \n a", " <t><t> ", "<t> a <t>", "a <t>"])
def test_an_added_token_includes_the_spaces_beside_it(text: str, side: str) -> None:
    """Phi's tokens of turns, for example, include the line end behind them."""
    description = byte_level(["<t>"])
    description["added_tokens"][0][side] = True
    vocab = vocabulary(description)
    assert vocab.encode_parts(parts(text)) == vocab.encode(text)


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("space", ["first", "always", "never", "prepend"])
@given(pieces=st.lists(st.sampled_from(["a", "b", " ", "é", "🙂", "<t>", "<s>"])))
def test_without_their_places_the_tokens_are_the_same(space: str, bos: bool, pieces: list[str]) -> None:
    text, vocab = "".join(pieces), vocabulary(sentencepiece(["<t>"], space=space, bos=bos))
    for add_special_tokens in (True, False):
        with_offsets = vocab.encode_with_offsets(text, add_special_tokens=add_special_tokens)
        assert vocab.encode(text, add_special_tokens=add_special_tokens) == with_offsets.ids


def test_a_vocabulary_with_scores_does_not_give_its_special_tokens_to_text() -> None:
    special = byte_level(["<s>"])["added_tokens"][0] | {"id": 1}
    scored = [("<unk>", 0.0), ("<s>", 0.0), ("<", -1.0), ("s", -1.0), (">", -1.0)]
    model = {"type": "Unigram", "unk_id": 0, "vocab": scored}
    vocab = vocabulary({"version": "1.0", "added_tokens": [special], "model": model})
    assert strings(vocab, vocab.encode("<s>")) == ["<s>"]
    assert strings(vocab, vocab.encode_plain("<s>")) == ["<", "s", ">"]


def test_a_vocabulary_of_whole_words_does_not_give_its_special_tokens_to_text() -> None:
    description = byte_level(ignore_merges=True, unk_token="<s>")
    special_id = len(description["model"]["vocab"])
    description["model"]["vocab"]["<s>"] = special_id
    description["added_tokens"] = [byte_level(["<s>"])["added_tokens"][0] | {"id": special_id}]
    vocab = vocabulary(description)
    assert strings(vocab, vocab.encode_plain("<s>")) == ["<", "s", ">"]
