"""Token ids to text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_repository.deliveries import DeliveredChunks, Delivery
from model_repository.detokenizer.text import (
    Decoding,
    Detokenizer,
    tensors_to_delivery,
    tensors_to_release,
)
from model_repository.errors import InvalidRequest
from model_repository.generation import FinishReason, GenerationChunk, TokenLogprob, TopLogprob, Usage
from model_repository.stage_messages import DrawnLogprob, Release, ReleaseDetails

BYTE_TABLE = [b"", b"Paris", b"\xe2\x82", b"\xac", b" STOP ", b"<tool>"]
SPECIAL = {0: b"<|end|>", 5: b"<tool>"}
DETOKENIZER = Detokenizer(BYTE_TABLE, Decoding(SPECIAL))
USAGE = Usage(num_input_tokens=1, num_output_tokens=2)


def chunk(*token_ids: int, num_cut_bytes: int = 0, **details: Any) -> GenerationChunk:
    release = Release(
        sequence=1,
        token_ids=token_ids,
        num_cut_bytes=num_cut_bytes,
        details=ReleaseDetails(**details) if details else None,
    )
    return DETOKENIZER.chunk(release)


# --- without details ------------------------------------------------------------------------------------------------


def test_a_character_is_put_together_from_its_tokens() -> None:
    assert chunk(1, 2, 3) == GenerationChunk(text="Paris€")


def test_a_token_without_bytes_is_no_text() -> None:
    assert chunk(0, 1, 0).text == "Paris"


def test_bytes_that_are_no_character_are_replaced() -> None:
    assert chunk(3, 1, 2).text == "\ufffdParis\ufffd"


def test_what_belongs_to_a_stop_sequence_is_cut() -> None:
    assert chunk(1, 4, num_cut_bytes=len("STOP ")).text == "Paris "


def test_reason_and_usage_are_passed_on() -> None:
    release = Release(sequence=1, finish_reason=FinishReason.LENGTH, usage=USAGE)
    assert DETOKENIZER.chunk(release) == GenerationChunk(text="", finish_reason=FinishReason.LENGTH, usage=USAGE)


# --- with details ---------------------------------------------------------------------------------------------------


def test_token_ids_are_told_if_asked_for() -> None:
    assert chunk(1, 0, has_token_ids=True) == GenerationChunk(text="Paris", token_ids=(1, 0))


def test_an_echo_comes_first() -> None:
    assert chunk(1, prompt_token_ids=(0, 9), echo=(b"", b"Q: ")) == GenerationChunk(text="Q: Paris")
    assert chunk(1, prompt_token_ids=(0, 9), echo=(b"", b"Q: "), has_token_ids=True) == GenerationChunk(
        text="Q: Paris", token_ids=(0, 9, 1), num_prompt_tokens=2, prompt_token_ids=(0, 9)
    )


def test_the_prompts_token_ids_are_told_beside_those_of_the_text() -> None:
    assert chunk(1, prompt_token_ids=(0, 9), has_token_ids=True) == GenerationChunk(
        text="Paris", token_ids=(1,), prompt_token_ids=(0, 9)
    )
    with_logprobs = chunk(1, prompt_token_ids=(0, 9), has_token_ids=True, logprobs=(DrawnLogprob(-1.0),))
    assert (len(with_logprobs.logprobs), with_logprobs.num_prompt_tokens) == (1, 0)


def test_an_open_character_of_the_prompt_is_not_closed_by_the_completion() -> None:
    assert chunk(3, prompt_token_ids=(2,), echo=(b"\xe2\x82",)).text == "\ufffd\ufffd"


def test_log_probabilities_tell_what_each_token_adds() -> None:
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
        logprobs=(
            TokenLogprob(0, b"", None),
            TokenLogprob(1, b"aris", -0.5, (TopLogprob(1, b"Paris", -0.5),)),
            TokenLogprob(2, b"\xe2\x82", -1.0, (TopLogprob(4, b" STOP ", -0.25), TopLogprob(2, b"\xe2\x82", -1.0))),
            TokenLogprob(4, b" ", -2.0),
        ),
        num_prompt_tokens=2,
    )


def test_a_special_token_among_the_likely_ones_shows_its_string_and_the_drawn_one_adds_nothing() -> None:
    (found,) = chunk(0, logprobs=(DrawnLogprob(-1.0, ((0, -1.0), (5, -2.0))),)).logprobs
    assert found == TokenLogprob(0, b"", -1.0, (TopLogprob(0, b"<|end|>", -1.0), TopLogprob(5, b"<tool>", -2.0)))


def test_special_tokens_are_shown_to_who_asks_for_them() -> None:
    assert chunk(1, 0, 5).text == "Paris<tool>"
    assert chunk(1, 0, 5, has_special_tokens=True).text == "Paris<|end|><tool>"


def test_what_ended_it_is_passed_on() -> None:
    details = ReleaseDetails(stop_reason=0, cum_logprob=-1.5)
    release = Release(sequence=1, finish_reason=FinishReason.STOP, usage=USAGE, details=details)
    assert DETOKENIZER.chunk(release) == GenerationChunk(
        text="", finish_reason=FinishReason.STOP, stop_reason=0, usage=USAGE
    )


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
    pieces = [item.token_bytes for item in found.logprobs]
    assert b"".join(pieces) == b"".join(echo_bytes) + whole[: len(whole) - num_cut_bytes]
    assert [item.token_id for item in found.logprobs] == list(found.token_ids)


# --- many sequences in one delivery -----------------------------------------------------------------------------------


def test_the_chunks_of_a_delivery_keep_number_and_order_and_errors_pass() -> None:
    plain = Release(sequence=1, token_ids=(1,))
    last = Release(sequence=2, token_ids=(2, 3), finish_reason=FinishReason.LENGTH, usage=USAGE)
    detailed = Release(sequence=3, token_ids=(1,), details=ReleaseDetails(has_token_ids=True))
    delivery = Delivery(9, 4, ((7, plain), (-1, "[engine_failed] x"), (7, last), (5, detailed)))
    assert DETOKENIZER.chunks(delivery) == DeliveredChunks(
        4,
        (
            (7, DETOKENIZER.chunk(plain)),
            (-1, "[engine_failed] x"),
            (7, DETOKENIZER.chunk(last)),
            (5, DETOKENIZER.chunk(detailed)),
        ),
    )


def test_a_delivery_without_items_stays_one() -> None:
    assert DETOKENIZER.chunks(Delivery(9, 4)) == DeliveredChunks(4)


# --- who calls the stage directly -----------------------------------------------------------------------------------


@pytest.mark.parametrize("token_id", [-1, 6, 2**40])
@pytest.mark.parametrize("details", [{}, {"has_special_tokens": True}])
def test_an_id_outside_the_vocabulary_is_refused(token_id: int, details: dict[str, Any]) -> None:
    """One below zero counted from the end of the table."""
    with pytest.raises(InvalidRequest) as caught:
        chunk(1, token_id, **details)
    assert caught.value.message() == f"[invalid_value] release: {token_id} is not a token: they are 0 to 5"


@pytest.mark.parametrize("details", [None, ReleaseDetails(has_special_tokens=True)])
def test_a_release_is_read_from_its_tensors(details: ReleaseDetails | None) -> None:
    release = Release(sequence=1, token_ids=(5, 6), details=details)
    tensors: dict[str, Any] = {"release": release.to_array()[np.newaxis]}
    if details is not None:
        tensors["release_details"] = np.array([[details.to_json()]], dtype=np.object_)
    assert tensors_to_release(tensors) == release


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"release": np.array([[1, 2]], dtype=np.int64)},
        {"release": np.array([[1, 0, 9, 0, 0, 0]], dtype=np.int64)},
        {"release": Release(sequence=1).to_array(), "release_details": np.array([[b"{"]], dtype=np.object_)},
        {"release": Release(sequence=1).to_array(), "release_details": np.array([[b"[1]"]], dtype=np.object_)},
        {"release": Release(sequence=1).to_array(), "release_details": np.array([[b'{"x": 1}']], dtype=np.object_)},
        {"release": Release(sequence=1).to_array(), "release_details": np.array([[b"{}", b"{}"]], dtype=np.object_)},
    ],
)
def test_what_no_engine_packs_is_refused(tensors: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tensors_to_release(tensors)
    assert caught.value.message() == "[invalid_value] release: not a packed release"


def delivery_tensors(words: list[int], details: bytes | None = None) -> dict[str, Any]:
    tensors: dict[str, Any] = {"delivery": np.array([words], dtype=np.int64)}
    if details is not None:
        tensors["delivery_details"] = np.array([[details]], dtype=np.object_)
    return tensors


def test_a_delivery_is_read_from_its_tensors() -> None:
    delivery = Delivery(9, 4, ((1, Release(sequence=5, token_ids=(6,))), (2, "[engine_failed] x")))
    assert tensors_to_delivery(delivery.to_tensors()) == delivery


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        delivery_tensors([]),
        delivery_tensors([9]),
        delivery_tensors([9, 4, 1]),  # an item without a length
        delivery_tensors([9, 4, 1, 6, 5, 0, 0]),  # one that ends too early
        delivery_tensors([9, 4, 1, 5, 5, 0, 0, 0, 0]),  # one too short for a release
        delivery_tensors([9, 4, 1, 7, 5, 0, 0, 0, 0, 0]),  # one longer than all there is
        delivery_tensors([9, 4, 1, -2, 1, -2]),
        delivery_tensors([9, 4, 1, -(2**63)]),
        delivery_tensors([9, 4, 1, 6, 5, 0, 9, 0, 0, 0]),  # an unknown reason
        delivery_tensors([9, 4, 1, 0]),  # an error without a message
        delivery_tensors([9, 4, 1, 0], b'{"0": 5}'),
        delivery_tensors([9, 4, 1, 0], b'{"1": "x"}'),
        delivery_tensors([9, 4], b"{"),
        delivery_tensors([9, 4], b"5"),
        delivery_tensors([9, 4], b"[1]"),
        delivery_tensors([9, 4], b"[" * 100_000),
        delivery_tensors([9, 4, 1, 6, 5, 0, 0, 0, 0, 0], b'{"0": "x"}'),
        delivery_tensors([9, 4, 1, 6, 5, 0, 0, 0, 0, 0], b'{"0": {"x": 1}}'),
        delivery_tensors([9, 4, 1, 6, 5, 0, 0, 0, 0, 0], b'{"0": {"logprobs": 5}}'),
        {"delivery": np.array([[9, 4]]), "delivery_details": np.array([[b"{}", b"{}"]], dtype=np.object_)},
    ],
)
def test_what_no_engine_delivers_is_refused(tensors: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tensors_to_delivery(tensors)
    assert caught.value.message() == "[invalid_value] delivery: not a packed delivery"


@given(st.lists(st.integers(-8, 12), max_size=24), st.none() | st.binary(max_size=8))
def test_any_words_are_a_delivery_or_refused(words: list[int], details: bytes | None) -> None:
    try:
        delivery = tensors_to_delivery(delivery_tensors(words, details))
    except InvalidRequest:
        return
    assert tensors_to_delivery(delivery.to_tensors()) == delivery


def test_what_decoding_needs_is_read_from_the_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    strip = {"type": "Strip", "content": " ", "start": 2, "stop": 0}
    description = {
        "added_tokens": [{"id": 7, "content": "<｜end｜>"}],  # noqa: RUF001
        "decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, strip]},
    }
    path.write_text(json.dumps(description), encoding="utf-8")
    assert Decoding.load(path) == Decoding({7: "<｜end｜>".encode()}, 2)  # noqa: RUF001
    path.write_text("{}", encoding="utf-8")
    assert Decoding.load(path) == Decoding({})
