"""Chunks of a completion to tensors and back."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_repository import contract
from model_repository.chunk_tensors import chunk_to_tensors, tensors_to_chunk
from model_repository.generation import FinishReason, GenerationChunk, Timing, TokenLogprob, TopLogprob, Usage

USAGE = Usage(num_input_tokens=5, num_output_tokens=7, num_cached_tokens=3)
FULL = GenerationChunk(
    text="日本",
    token_ids=(1, 2),
    logprobs=(
        TokenLogprob(1, b"\xe6\x97", None),
        TokenLogprob(2, b"\xa5\xe6\x9c\xac", -0.5, (TopLogprob(2, b"\xa5", -0.5), TopLogprob(9, b"", -1.25))),
    ),
    num_prompt_tokens=1,
    prompt_token_ids=(0, 7),
    finish_reason=FinishReason.STOP,
    stop_reason="€",
    usage=USAGE,
    timing=Timing(
        arrival_time_ns=1, first_scheduled_time_ns=2**40, first_token_time_ns=2**62, last_token_time_ns=2**62 + 1
    ),
)

COUNT = st.integers(0, 2**31 - 1)
LOGPROB = st.floats(max_value=0, allow_nan=False, width=32)
TOP = st.lists(st.builds(TopLogprob, COUNT, st.binary(max_size=3), LOGPROB), max_size=3).map(tuple)
LOGPROBS = st.lists(st.builds(TokenLogprob, COUNT, st.binary(max_size=3), st.none() | LOGPROB, TOP), max_size=4).map(
    tuple
)


@st.composite
def chunks(draw: st.DrawFn) -> GenerationChunk:
    logprobs = draw(LOGPROBS)
    finish_reason = draw(st.none() | st.sampled_from(FinishReason))
    return GenerationChunk(
        text=draw(st.text(max_size=5)),
        # With log probabilities come the ids of the same tokens.
        token_ids=tuple(item.token_id for item in logprobs)
        if logprobs
        else draw(st.lists(COUNT, max_size=3).map(tuple)),
        logprobs=logprobs,
        num_prompt_tokens=draw(COUNT),
        prompt_token_ids=draw(st.lists(COUNT, max_size=3).map(tuple)),
        finish_reason=finish_reason,
        stop_reason=draw(st.none() | st.text(max_size=3) | COUNT) if finish_reason else None,
        usage=draw(
            st.none() | st.builds(Usage, num_input_tokens=COUNT, num_output_tokens=COUNT, num_cached_tokens=COUNT)
        ),
    )


@given(chunks())
def test_a_chunk_survives_its_tensors(chunk: GenerationChunk) -> None:
    assert tensors_to_chunk(chunk_to_tensors(chunk)) == chunk


@pytest.mark.parametrize(
    "chunk",
    [
        FULL,
        GenerationChunk(text=""),
        GenerationChunk(text="a", usage=USAGE),
        GenerationChunk(text="", finish_reason=FinishReason.LENGTH, usage=USAGE),
        GenerationChunk(text="", token_ids=(0,), finish_reason=FinishReason.STOP, stop_reason=0, usage=USAGE),
        GenerationChunk(text="", finish_reason=FinishReason.STOP, stop_reason="", usage=USAGE),
    ],
)
def test_these_chunks_survive_their_tensors(chunk: GenerationChunk) -> None:
    assert tensors_to_chunk(chunk_to_tensors(chunk)) == chunk


def test_a_chunk_carries_only_what_it_says() -> None:
    assert set(chunk_to_tensors(GenerationChunk(text="a"))) == {"text_output"}
    assert set(chunk_to_tensors(GenerationChunk(text="a", token_ids=(1,)))) == {"text_output", "token_ids"}


def test_a_chunk_can_fill_every_public_output() -> None:
    tensors = chunk_to_tensors(FULL, cum_logprob=-0.5)
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {
        spec.name: np.dtype(spec.dtype) for spec in contract.PUBLIC_OUTPUTS
    }
    assert all(tensor.shape[0] == 1 for tensor in tensors.values())
    assert tensors["cum_log_probs"].tolist() == [[-0.5]]


def test_tokens_without_likely_ones_are_filled_up() -> None:
    tensors = chunk_to_tensors(FULL)
    assert tensors["top_logprob_token_ids"].tolist() == [[-1, -1, 2, 9]]
    assert tensors["top_logprob_token_bytes"].tolist() == [[b"", b"", b"\xa5", b""]]
    assert [math.isnan(value) for value in tensors["top_logprob_values"][0]] == [True, True, False, False]


def test_a_first_token_without_a_probability_is_no_number() -> None:
    assert math.isnan(chunk_to_tensors(FULL)["output_log_probs"][0, 0])


@pytest.mark.parametrize("stop_reason", ["5", 5])
def test_a_stop_sequence_can_be_told_from_a_token(stop_reason: str | int) -> None:
    chunk = GenerationChunk(text="", finish_reason=FinishReason.STOP, stop_reason=stop_reason, usage=USAGE)
    tensor = chunk_to_tensors(chunk)["stop_reason"]
    assert json.loads(tensor.item()) == stop_reason
