"""The bytes of every token."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from build_engines.errors import UnsupportedCheckpoint
from build_engines.vocabulary import token_bytes
from tests.build_engines.tiny_checkpoint import tokenizer_description

DEMO = Path(str(resources.files("build_engines").joinpath("demo", "checkpoint", "tokenizer.json")))


def description_of_demo() -> dict[str, Any]:
    description: dict[str, Any] = json.loads(DEMO.read_text(encoding="utf-8"))
    return description


def test_every_token_has_the_bytes_that_the_tokenizer_decodes_it_to() -> None:
    tokenizer, table = Tokenizer.from_file(str(DEMO)), token_bytes(description_of_demo(), 0)
    added = tokenizer.get_added_tokens_decoder()
    assert len(table) == tokenizer.get_vocab_size(with_added_tokens=False)
    for token_id, item in enumerate(table):
        assert token_id not in added
        assert item.decode("utf-8", "replace") == tokenizer.decode([token_id])


def test_the_bytes_of_a_texts_tokens_are_the_text() -> None:
    tokenizer, table = Tokenizer.from_file(str(DEMO)), token_bytes(description_of_demo(), 3072)
    for text in ("What is the capital of France?", " 日本 🙂\n\ttab", "\x00\x7f\u00a0é\u0301", "<|im_"):
        assert b"".join(table[token_id] for token_id in tokenizer.encode(text).ids) == text.encode()


def test_special_tokens_of_a_tool_call_format_are_text() -> None:
    table = token_bytes(tokenizer_description(["<|python_tag|>", "<|eot_id|>"]), 258, ("<|python_tag|>", "<tool_call>"))
    assert table[256:] == [b"<|python_tag|>", b""]


def test_the_table_is_as_long_as_the_models_output() -> None:
    assert len(token_bytes(tokenizer_description(), 300)) == 300


def test_an_added_token_of_the_vocabulary_is_not_text() -> None:
    """Its characters need not be of the byte alphabet, which ended the build."""
    description = tokenizer_description(["<\uff5cend\u2581of\uff5c>"])
    description["model"]["vocab"]["<\uff5cend\u2581of\uff5c>"] = description["added_tokens"][0]["id"]
    assert token_bytes(description, 0)[-1] == b""


def test_a_token_outside_the_byte_alphabet_stands_for_itself_as_the_tokenizer_decodes_it() -> None:
    description = tokenizer_description([])
    description["model"]["vocab"]["日 本"] = 256
    tokenizer = Tokenizer.from_str(json.dumps(description))
    assert token_bytes(description, 0)[256].decode() == tokenizer.decode([256]) == "日 本"


REPLACE = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
SENTENCEPIECE: dict[str, Any] = {
    "added_tokens": [{"id": 0, "content": "<s>", "special": True}],
    "decoder": {"type": "Sequence", "decoders": [REPLACE, {"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {
        "type": "BPE",
        "vocab": {"<s>": 0, "<0x0A>": 1, "<0xE2>": 2, "\u2581the": 3, "日": 4, "\u2581": 5, "<0xZZ>": 6, "a<0x0A>": 7},
    },
}


def test_sentencepiece_tokens_are_bytes_or_text_with_spaces() -> None:
    expected = [b"", b"\n", b"\xe2", b" the", "日".encode(), b" ", b"<0xZZ>", b"a<0x0A>"]
    assert token_bytes(SENTENCEPIECE, 0) == expected


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [{"type": "WordPiece"}],
        [{"type": "Fuse"}],
        [{"type": "ByteFallback"}, REPLACE, {"type": "Fuse"}],  # also replaces what byte tokens spell
        [{"type": "Strip", "content": " ", "start": 1, "stop": 0}, {"type": "ByteFallback"}, {"type": "Fuse"}],
        [{"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}],
    ],
)
def test_a_decoder_that_no_table_of_bytes_represents_is_refused(steps: list[dict[str, Any]]) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"decoder .*: expected "):
        token_bytes(SENTENCEPIECE | {"decoder": {"type": "Sequence", "decoders": steps}}, 0)


@pytest.mark.parametrize("decoder", [SENTENCEPIECE["decoder"], {"type": "Metaspace", "replacement": "\u2581"}])
def test_the_place_of_a_token_with_a_score_is_its_id(decoder: dict[str, Any]) -> None:
    model = {"type": "Unigram", "vocab": [["<s>", 0.0], ["\u2581the", -1.0], ["", -2.0]]}
    assert token_bytes(SENTENCEPIECE | {"decoder": decoder, "model": model}, 0) == [b"", b" the", b""]


def test_a_model_without_a_vocabulary_is_refused() -> None:
    with pytest.raises(UnsupportedCheckpoint, match="model Unigram: expected a vocabulary"):
        token_bytes(SENTENCEPIECE | {"model": {"type": "Unigram", "vocab": []}}, 0)
