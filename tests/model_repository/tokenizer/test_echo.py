"""The prompt as the beginning of the text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from model_repository.tokenizer.echo import aligned, spelled
from model_repository.tokenizer.vocabulary import Vocabulary
from tests.model_repository.tokenizer.models import DEMO_BYTES, DEMO_FILES, byte_level, byte_table, sentencepiece

DEMO = Vocabulary(DEMO_FILES.tokenizer)


def echo(text: str, description: dict[str, Any]) -> list[bytes]:
    tokenizer = Tokenizer.from_str(json.dumps(description))
    vocabulary = Vocabulary(tokenizer)
    return list(aligned(spelled(text, vocabulary.encode_with_offsets(text), vocabulary, byte_table(tokenizer)), text))


@pytest.mark.parametrize("space", ["first", "always", "never", "prepend"])
@pytest.mark.parametrize("text", ["a b", " a", "  a", "a<t>b <t> <s>a", "é🙂", " ", "<t>"])
def test_the_pieces_are_exactly_the_text(text: str, space: str) -> None:
    pieces = echo(text, sentencepiece(["<t>"], space=space))
    assert b"".join(pieces) == text.encode()
    assert pieces[0] == b""  # the BOS token


def test_an_added_token_stands_for_its_part_of_the_text() -> None:
    description = byte_level(["<t>"])
    description["added_tokens"][0]["rstrip"] = True
    assert echo("a<t> \nb", description) == [b"a", b"<t> \n", b"b"]


def test_an_unknown_character_is_echoed_all_the_same() -> None:
    description = sentencepiece(["<t>"], bos=False)
    description["model"]["byte_fallback"] = False
    assert echo("aéb", description) == [b"a", "é".encode(), b"b"]


def test_where_a_normalizer_changes_the_text_the_first_token_stands_for_all() -> None:
    description = byte_level() | {"normalizer": {"type": "NFC"}}
    text = "e\u0301x"
    assert echo(text, description) == [text.encode(), b"", b""]
    description = byte_level() | {"normalizer": {"type": "Strip", "strip_left": False, "strip_right": True}}
    assert echo("ab ", description) == [b"ab ", b""]


@given(st.lists(st.sampled_from(["<|im_end|>", "<tool_call>", "<|", "a", " b", "\n", "é", "🙂", "  "]) | st.text()))
def test_any_text_is_echoed_exactly_token_by_token(pieces: list[str]) -> None:
    text = "".join(pieces)
    found = spelled(text, DEMO.encode_with_offsets(text), DEMO, DEMO_BYTES)
    assert len(found) == len(DEMO.encode_with_offsets(text).ids)
    assert b"".join(found) == text.encode()
    assert list(aligned(found, text)) == found
