"""Deliveries to tensors and back."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_repository import contract
from model_repository.deliveries import DeliveredChunks, Delivery
from model_repository.errors import EngineFailed
from model_repository.generation import FinishReason, GenerationChunk, Usage
from model_repository.stage_messages import DrawnLogprob, Release, ReleaseDetails
from tests.model_repository import test_chunk_tensors
from tests.model_repository.test_stage_messages import COUNTS, DETAILS

ERROR = EngineFailed("out of cells: \0 é").message()
NUMBER = st.integers(-(2**63), 2**63 - 1)
SERIAL = st.integers(0, 2**63 - 1)
USAGES = st.builds(Usage, num_input_tokens=COUNTS, num_output_tokens=COUNTS, num_cached_tokens=COUNTS)
TEXT = st.text(max_size=5)


@st.composite
def releases(draw: st.DrawFn) -> Release:
    finish_reason = draw(st.none() | st.sampled_from(FinishReason))
    return Release(
        sequence=draw(st.integers(0, 2**60)),
        token_ids=draw(st.lists(COUNTS, max_size=4).map(tuple)),
        num_cut_bytes=draw(COUNTS),
        finish_reason=finish_reason,
        usage=draw(USAGES) if finish_reason else None,
        details=draw(
            st.none()
            | st.just(DETAILS)
            | st.just(ReleaseDetails())
            | st.builds(
                ReleaseDetails, logprobs=st.just((DrawnLogprob(float("-inf"), ((0, -0.5),)),)), stop_reason=TEXT
            )
        ),
    )


@st.composite
def chunks(draw: st.DrawFn) -> GenerationChunk:
    chunk = draw(test_chunk_tensors.chunks())
    return chunk if not chunk.is_text else GenerationChunk(text=chunk.text)  # it would say of what the rest is


def items(of: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.tuples(NUMBER, of | TEXT | st.just(ERROR)), max_size=5).map(tuple)


def test_every_delivery_without_items_looks_for_the_reader_and_some_of_the_others() -> None:
    """To look took longer than all else that the detokenizer does for a delivery; not to look keeps the engine busy."""
    item = (1, Release(sequence=1, token_ids=(1,)))
    assert all(Delivery(9, serial).is_probe for serial in range(8))
    assert [Delivery(9, serial, (item,)).is_probe for serial in range(8)] == [True, False, False, False] * 2


@given(NUMBER, SERIAL, items(releases()))
def test_a_delivery_survives_its_tensors(stream: int, serial: int, told: Any) -> None:
    delivery = Delivery(stream, serial, told)
    assert Delivery.from_tensors(delivery.to_tensors()) == delivery


@given(SERIAL, items(chunks()))
def test_delivered_chunks_survive_their_tensors(serial: int, told: Any) -> None:
    delivered = DeliveredChunks(serial, told)
    assert DeliveredChunks.from_tensors(delivered.to_tensors()) == delivered


@pytest.mark.parametrize("text", ["", "\0", "a\0", "é🙂\u2028", "\ufffd"])
@pytest.mark.parametrize("finish_reason", [None, FinishReason.LENGTH])
def test_any_text_survives(text: str, finish_reason: FinishReason | None) -> None:
    chunk = GenerationChunk(text=text, finish_reason=finish_reason)
    delivered = DeliveredChunks(0, ((1, GenerationChunk(text="")), (2, chunk), (3, GenerationChunk(text=text))))
    assert DeliveredChunks.from_tensors(delivered.to_tensors()) == delivered


def test_a_finish_reason_comes_back_as_one() -> None:
    delivered = DeliveredChunks(0, ((1, GenerationChunk(text="", finish_reason=FinishReason.STOP)),))
    [(_, chunk)] = DeliveredChunks.from_tensors(delivered.to_tensors()).items
    assert isinstance(chunk, GenerationChunk)
    assert isinstance(chunk.finish_reason, FinishReason)


def test_every_field_of_a_chunk_survives() -> None:
    full = test_chunk_tensors.FULL
    for field in dataclasses.fields(full):
        assert getattr(full, field.name) != getattr(GenerationChunk(text=""), field.name), field.name
    delivered = DeliveredChunks(5, ((1, full),))
    assert DeliveredChunks.from_tensors(delivered.to_tensors()) == delivered


def test_a_delivery_without_items_is_one() -> None:
    assert Delivery.from_tensors(Delivery(3, 4).to_tensors()) == Delivery(3, 4)
    assert DeliveredChunks.from_tensors(DeliveredChunks(4).to_tensors()) == DeliveredChunks(4)


def test_plain_text_travels_without_details() -> None:
    """Each further tensor costs as much as a token."""
    told = tuple((number, Release(sequence=1, token_ids=(5,))) for number in range(3))
    assert Delivery(1, 2, told).to_tensors().keys() == {"delivery"}
    texts = tuple((number, GenerationChunk(text="a")) for number in range(3))
    assert DeliveredChunks(2, texts).to_tensors().keys() == {"delivered", "delivered_texts"}


@pytest.mark.parametrize("delivery", [Delivery(1, 2), Delivery(1, 2, ((3, ERROR), (4, Release(sequence=5))))])
def test_tensors_are_as_the_contract_says(delivery: Delivery) -> None:
    delivered = DeliveredChunks(2, tuple((number, ERROR) for number, _ in delivery.items))
    for name, tensor in (delivery.to_tensors() | delivered.to_tensors()).items():
        spec = getattr(contract, name.upper())
        assert (tensor.dtype, tensor.ndim, tensor.shape[0]) == (np.dtype(spec.dtype), 2, 1)
