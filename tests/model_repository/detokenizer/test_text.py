"""Token ids to text."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from model_repository.contract.codec import pack_logprobs, unpack_logprobs
from model_repository.contract.output import (
    DeltaDetails,
    DrawnLogprob,
    GenerationChunk,
    TokenDelta,
    TokenLogprob,
    TopLogprob,
)
from model_repository.detokenizer.text import Detokenizer, load_special_tokens
from model_repository.errors import InvalidRequest
from tests.model_repository.detokenizer.decoding import chunk_of

BYTE_TABLE = [b"", b"Paris", b"\xe2\x82", b"\xac", b" STOP ", b"<tool>"]
SPECIAL = {0: b"<|end|>", 5: b"<tool>"}
DETOKENIZER = Detokenizer(BYTE_TABLE, SPECIAL)


def chunk(*token_ids: int, num_cut_bytes: int = 0, **details: Any) -> GenerationChunk:
    """Return the chunk of a delta, without the ids for a resume, which are checked here."""
    delta = TokenDelta(token_ids, num_cut_bytes, details=DeltaDetails(**details) if details else None)
    found = chunk_of(DETOKENIZER, delta)
    assert array("i", found.packed_token_ids).tolist() == [*token_ids]
    return replace(found, packed_token_ids=b"")


# --- with details ---------------------------------------------------------------------------------------------------


def test_an_echo_comes_first() -> None:
    assert chunk(1, prompt_token_ids=(0, 9), echo=(b"", b"Q: ")) == GenerationChunk(text="Q: Paris")
    assert chunk(1, prompt_token_ids=(0, 9), echo=(b"", b"Q: "), has_token_ids=True) == GenerationChunk(
        text="Q: Paris", token_ids=(0, 9, 1), num_prompt_tokens=2, prompt_token_ids=(0, 9)
    )


def test_log_probabilities_have_the_bytes_that_each_token_adds() -> None:
    found = chunk(
        2,
        4,
        num_cut_bytes=len("STOP "),
        prompt_token_ids=(0, 1),
        echo=(b"", b"aris"),
        logprobs=(
            DrawnLogprob(None),
            DrawnLogprob(-0.5, ((1, -0.5),)),
            DrawnLogprob(-1.0, ((4, -0.25), (2, -1.0))),
            DrawnLogprob(-2.0),
        ),
    )
    assert found == GenerationChunk(
        text="aris\ufffd ",
        token_ids=(0, 1, 2, 4),
        logprobs=pack_logprobs(
            [
                TokenLogprob(0, b"", None),
                TokenLogprob(1, b"aris", -0.5, (TopLogprob(1, b"Paris", -0.5),)),
                TokenLogprob(2, b"\xe2\x82", -1.0, (TopLogprob(4, b" STOP ", -0.25), TopLogprob(2, b"\xe2\x82", -1.0))),
                TokenLogprob(4, b" ", -2.0),
            ]
        ),
        num_prompt_tokens=2,
        num_tokens=2,
    )


def test_the_prompts_own_log_probabilities_name_its_tokens_and_add_no_text() -> None:
    scores = (DrawnLogprob(None), DrawnLogprob(-0.5, ((0, -0.25),), 2))
    assert chunk(1, prompt_token_ids=(0, 1), prompt_logprobs=scores) == GenerationChunk(
        text="Paris",
        prompt_logprobs=pack_logprobs(
            [
                TokenLogprob(0, b"<|end|>", None),
                TokenLogprob(1, b"Paris", -0.5, (TopLogprob(0, b"<|end|>", -0.25),), 2),
            ]
        ),
    )


def test_a_special_token_among_the_likely_ones_shows_its_string_and_the_drawn_one_adds_nothing() -> None:
    (found,) = unpack_logprobs(chunk(0, logprobs=(DrawnLogprob(-1.0, ((0, -1.0), (5, -2.0))),)).logprobs)
    assert found == TokenLogprob(0, b"", -1.0, (TopLogprob(0, b"<|end|>", -1.0), TopLogprob(5, b"<tool>", -2.0)))


@given(
    st.lists(st.integers(0, len(BYTE_TABLE) - 1), max_size=6),
    st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=3)), max_size=3),
    st.integers(0, 12),
)
def test_the_bytes_of_the_tokens_are_those_of_the_text(
    token_ids: list[int], echo: list[tuple[int, bytes]], num_cut_bytes: int
) -> None:
    """And with details the text is the same as without."""
    whole = b"".join(BYTE_TABLE[token_id] for token_id in token_ids)
    num_cut_bytes = min(num_cut_bytes, len(whole))
    plain = chunk(*token_ids, num_cut_bytes=num_cut_bytes)
    assert plain.text == whole[: len(whole) - num_cut_bytes].decode("utf-8", "replace")
    echo_bytes = tuple(piece for _, piece in echo)
    found = chunk(
        *token_ids,
        num_cut_bytes=num_cut_bytes,
        prompt_token_ids=tuple(token_id for token_id, _ in echo),
        echo=echo_bytes,
        logprobs=(DrawnLogprob(-1.0),) * (len(echo) + len(token_ids)),
        has_token_ids=True,
    )
    assert found.text == b"".join(echo_bytes).decode("utf-8", "replace") + plain.text
    pieces = [item.token_bytes for item in unpack_logprobs(found.logprobs)]
    assert b"".join(pieces) == b"".join(echo_bytes) + whole[: len(whole) - num_cut_bytes]
    assert [item.token_id for item in unpack_logprobs(found.logprobs)] == list(found.token_ids)


# --- direct callers of the stage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("token_id", [-1, 6, 2**40])
def test_an_id_outside_the_vocabulary_is_refused(token_id: int) -> None:
    """One below zero counted from the end of the table."""
    with pytest.raises(InvalidRequest) as caught:
        chunk(1, token_id)
    assert caught.value.message() == f"[invalid_value] output_batch: {token_id} is not a token: they are 0 to 5"


def test_the_strings_of_special_tokens_are_read_from_the_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"added_tokens": [{"id": 7, "content": "<｜end｜>"}]}), encoding="utf-8")  # noqa: RUF001
    assert load_special_tokens(path) == {7: "<｜end｜>".encode()}  # noqa: RUF001
    path.write_text("{}", encoding="utf-8")
    assert load_special_tokens(path) == {}
