"""Prompts with a suffix."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tokenizers import Tokenizer

from model_repository.errors import Unsupported
from model_repository.tokenizer.fill_in_middle import FAMILIES, FillInMiddle, FillInMiddleEncoder
from model_repository.tokenizer.vocabulary import Vocabulary
from tests.model_repository.tokenizer.models import DEMO_FILES, byte_level, sentencepiece

BY_PREFIX = {family.prefix: family for family in FAMILIES}


def tokens(description: dict[str, Any], prefix: str = "ab", suffix: str = "cd") -> list[str]:
    """Return the tokens of a prompt, those of the prefix in parentheses."""
    vocabulary = Vocabulary(Tokenizer.from_str(json.dumps(description)))
    encoded = FillInMiddleEncoder(vocabulary).encode(prefix, suffix)
    strings = [(vocabulary.token_string(token_id), is_prefix) for token_id, is_prefix in encoded]
    return [f"({string})" if is_prefix else string for string, is_prefix in strings]


def markers(family: FillInMiddle) -> Sequence[str]:
    return (family.middle, family.suffix, family.prefix)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.prefix)
def test_prefix_and_suffix_stand_between_the_models_tokens(family: FillInMiddle) -> None:
    expected = [family.prefix, "(a)", "(b)", family.suffix, "c", "d", family.middle]
    assert tokens(byte_level(markers(family))) == expected


def test_a_bos_token_stands_before_everything() -> None:
    family = BY_PREFIX["<｜fim▁begin｜>"]  # noqa: RUF001 (it is spelled so)
    assert tokens(sentencepiece(markers(family), space="never")) == [
        "<s>",
        family.prefix,
        "(a)",
        "(b)",
        family.suffix,
        "c",
        "d",
        family.middle,
    ]


@pytest.mark.parametrize("space", ["first", "always", "prepend"])
def test_code_llama_has_a_space_before_the_prefix_but_not_before_the_suffix(space: str) -> None:
    description = sentencepiece(markers(BY_PREFIX["▁<PRE>"]), space=space)
    assert tokens(description) == ["<s>", "▁<PRE>", "(▁a)", "(b)", "▁<SUF>", "c", "d", "▁<MID>"]


@pytest.mark.parametrize("missing", range(3))
def test_a_suffix_for_a_model_without_all_tokens_is_refused(missing: int) -> None:
    some = [token for index, token in enumerate(markers(FAMILIES[0])) if index != missing]
    with pytest.raises(Unsupported) as caught:
        tokens(byte_level(some))
    assert caught.value.message() == (
        "[unsupported_value] suffix: this model cannot fill in the middle: its vocabulary has no tokens for it"
    )


def test_the_end_tokens_of_a_middle_are_known() -> None:
    demo = Vocabulary(DEMO_FILES.tokenizer)
    assert [demo.token_string(token_id) for token_id in FillInMiddleEncoder(demo).end_token_ids] == ["<|endoftext|>"]
    llama = Vocabulary(Tokenizer.from_str(json.dumps(sentencepiece([*markers(BY_PREFIX["▁<PRE>"]), "▁<EOT>"]))))
    assert [llama.token_string(token_id) for token_id in FillInMiddleEncoder(llama).end_token_ids] == ["▁<EOT>"]
    assert FillInMiddleEncoder(Vocabulary(Tokenizer.from_str(json.dumps(byte_level())))).end_token_ids == ()
