"""Texts are those of the tokenizers library's decoder, for each family of tokenizers in the catalog."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from build_engines.vocabulary import token_bytes
from model_repository.contract.output import TokenDelta
from model_repository.contract.request import DetokenizeRequest
from model_repository.detokenizer.text import Detokenizer
from model_repository.engine.stop_buffer import StopBuffer
from model_repository.tokenizer.token_text import TokenText
from tests.build_engines.tiny_checkpoint import sentencepiece_description, tokenizer_description
from tests.model_repository.detokenizer.decoding import chunk_of

SPACES = "\u2581"
MERGES = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("\u00e2", "\u0124")]  # the last: half of a character


def with_added(description: dict[str, Any], **is_special: bool) -> dict[str, Any]:
    """Return a tokenizer.json with further added tokens, by their content."""
    first = 1 + max(*description["model"]["vocab"].values(), *(token["id"] for token in description["added_tokens"]))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": first + index, "content": content, "special": special, **flags}
        for index, (content, special) in enumerate(is_special.items())
    ]
    return description | {"added_tokens": [*description["added_tokens"], *added]}


def deepseek() -> dict[str, Any]:
    """Bytes that no UTF-8 has are not in DeepSeek's vocabulary: their letters are added tokens, and still bytes."""
    description = tokenizer_description([], merges=MERGES)
    kept = [token for token in description["model"]["vocab"] if token not in "\u00c0\u00f5"]
    description["model"]["vocab"] = {token: index for index, token in enumerate(kept)}
    texts = ("<\uff5cfim\u2581hole\uff5c>", "\u00c0", "\u00f5", "two words", "\u00e9 ")
    return with_added(description, **{"<\uff5cend\u2581of\u2581sentence\uff5c>": True}, **dict.fromkeys(texts, False))


def gemma() -> dict[str, Any]:
    """Gemma's runs of spaces and line breaks are added tokens that are not special; nothing is put before a text."""
    description = sentencepiece_description()
    description["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": SPACES}
    description["decoder"]["decoders"] = description["decoder"]["decoders"][:-1]
    runs = {SPACES * length: False for length in (2, 3, 24)} | {"\n" * length: False for length in (2, 3)}
    return with_added(
        description, **runs, **{"<unused0>": False, "<h1>": False, "<start_of_turn>": True, "\t\t": False}
    )


FAMILIES: dict[str, dict[str, Any]] = {
    "Llama 3": tokenizer_description(["<|begin_of_text|>", "<|eot_id|>", "<|python_tag|>"], merges=MERGES),
    "Qwen 2": with_added(
        tokenizer_description(["<|im_start|>", "<|im_end|>"], merges=MERGES),
        **{"<tool_call>": False, "</tool_call>": False},
    ),
    "DeepSeek-V2": deepseek(),
    "Gemma 2": gemma(),
    "Llama 2": with_added(sentencepiece_description(), **{SPACES * 2: False, "<|mark|>": False}),
}
BYTE_LEVEL, SENTENCEPIECE = ["Llama 3", "Qwen 2", "DeepSeek-V2"], ["Gemma 2", "Llama 2"]


@cache
def family(name: str) -> tuple[Tokenizer, list[bytes]]:
    """Return a tokenizer and the byte table that a build makes of it."""
    tokenizer = Tokenizer.from_str(json.dumps(FAMILIES[name]))
    return tokenizer, token_bytes(FAMILIES[name], tokenizer.get_vocab_size(with_added_tokens=True) + 2)


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token of the vocabulary."""
    return int(tokenizer.token_to_id(token))  # type: ignore[arg-type]


def decoded(table: list[bytes], token_ids: list[int]) -> str:
    """Return the client's text: through the stop buffer, then delta by delta through the detokenizer."""
    gate, detokenizer = StopBuffer(table, [b"no such text"]), Detokenizer(table, {})
    deltas = [TokenDelta(tuple(final)) for final in (*map(gate.push, token_ids), gate.finish())]
    return "".join(chunk_of(detokenizer, delta).text for delta in deltas)


def behind_a_prompt(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    """Return the library's text of a completion. Its first space is not the first space of the text."""
    prompt = tokenizer.encode("a", add_special_tokens=False).ids
    return tokenizer.decode([*prompt, *token_ids]).removeprefix(tokenizer.decode(prompt))


@pytest.mark.parametrize("name", FAMILIES)
def test_each_token_is_decoded_as_by_the_library(name: str) -> None:
    """Added tokens that are not special were decoded literally: Gemma's runs of spaces came out as U+2581."""
    tokenizer, table = family(name)
    for index in range(len(table)):
        assert decoded(table, [index]) == behind_a_prompt(tokenizer, [index])


@pytest.mark.parametrize("name", BYTE_LEVEL)
@given(st.data())
def test_any_tokens_of_bytes_are_decoded_as_by_the_library(name: str, data: st.DataObject) -> None:
    tokenizer, table = family(name)
    token_ids = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=24))
    assert decoded(table, token_ids) == tokenizer.decode(token_ids)


def pieces(name: str) -> st.SearchStrategy[list[int]]:
    """Draw one token that is no byte, or the byte tokens of one character."""
    tokenizer, table = family(name)
    byte_ids = [token_id(tokenizer, f"<0x{byte:02X}>") for byte in range(256)]
    others = [[index] for index in range(len(table)) if index not in byte_ids]
    characters = st.characters(exclude_categories=["Cs"]).map(lambda text: [byte_ids[byte] for byte in text.encode()])
    return st.sampled_from(others) | characters


@pytest.mark.parametrize("name", SENTENCEPIECE)
@given(st.data())
def test_any_tokens_of_sentencepiece_are_decoded_as_by_the_library(name: str, data: st.DataObject) -> None:
    tokenizer, table = family(name)
    token_ids = [index for piece in data.draw(st.lists(pieces(name), max_size=24)) for index in piece]
    assert decoded(table, token_ids) == behind_a_prompt(tokenizer, token_ids)


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_byte_tokens_that_are_no_text_are_one_replacement_for_each_broken_character(name: str) -> None:
    """The library replaces every byte of such a run, also those of whole characters, which have been sent by then."""
    tokenizer, table = family(name)
    token_ids = [token_id(tokenizer, token) for token in ("<0xC3>", "<0xA9>", "<0xE2>", "<0x82>", "a")]
    assert decoded(table, token_ids) == "\u00e9\ufffda"
    assert behind_a_prompt(tokenizer, token_ids) == "\ufffd\ufffd\ufffd\ufffda"


@pytest.mark.parametrize("name", FAMILIES)
@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("a")
@example("  a  b\n\n    c")
def test_a_text_of_its_own_comes_back_as_by_the_library(name: str, text: str) -> None:
    """Llama 2's decoder strips the space that its normalizer puts before a text; /detokenize kept it."""
    tokenizer, table = family(name)
    token_ids = tokenizer.encode(text, add_special_tokens=False).ids
    found = TokenText(tokenizer, table).of(DetokenizeRequest(tuple(token_ids), has_special_tokens=True))
    assert found == tokenizer.decode(token_ids, skip_special_tokens=False)
