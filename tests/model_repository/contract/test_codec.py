"""Messages as MessagePack, and as tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from model_repository.contract.codec import (
    chunk_to_tensors,
    message_tensor,
    pack,
    pack_logprobs,
    payload_of,
    tensor,
    unpack,
)
from model_repository.contract.output import (
    BATCHES_PER_DISCONNECT_CHECK,
    ChunkBatch,
    DeltaDetails,
    EngineStats,
    FinishReason,
    GenerationChunk,
    OutputBatch,
    Timing,
    TokenDelta,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from model_repository.contract.request import (
    EngineRequest,
    EngineRequestBatch,
    RequestBatch,
    TokenizeAnswer,
    TokenizeRequest,
)
from model_repository.contract.tensors import CHUNK_BATCH, PUBLIC_OUTPUTS
from model_repository.errors import InvalidRequest
from tests.model_repository.contract.generated import messages

SENT = (RequestBatch, EngineRequestBatch, TokenizeRequest, TokenizeAnswer, OutputBatch, ChunkBatch, EngineStats)


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(InvalidRequest) as caught:
        call()
    return caught.value.message().removeprefix("[invalid_value] ")


# --- MessagePack ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", SENT)
@settings(max_examples=30)
@given(data=st.data())
def test_a_message_survives_its_payload(message: type[Struct], data: st.DataObject) -> None:
    sent = data.draw(messages(message))
    assert unpack(message, pack(sent), "name") == sent


@pytest.mark.parametrize("message", SENT)
@settings(max_examples=30)
@given(data=st.data())
def test_a_payload_with_a_wrong_byte_is_a_message_or_refused_by_the_name_of_its_tensor(
    message: type[Struct], data: st.DataObject
) -> None:
    payload = bytearray(pack(data.draw(messages(message))))
    payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        unpack(message, bytes(payload), "name")
    except InvalidRequest as refused:
        assert refused.field == "name"


@pytest.mark.parametrize("message", SENT)
@pytest.mark.parametrize("payload", [b"", b"\xc0", b"\x80", b"\x91" * 100_000])
def test_a_payload_of_another_form_is_refused(message: type[Struct], payload: bytes) -> None:
    assert refusal(lambda: unpack(message, payload, "name")).startswith(f"name: not a {message.__name__} (")


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": "5"},
        {"max_tokens": True},
        {"prompt_token_ids": ["a"]},
        {"params": {"structured_output": {"format": "other"}}},
        {"params": {"structured_output": {"format": "regex", "content": 5}}},
        {"grammar": 5},
        {"params": {"stop": ["a", ""]}},
        {"params": {"stop_token_ids": ["a"]}},
        {"params": {"is_stream": 1}},
        {"params": {"priority": 1e30}},
        {"params": {"overflow": "cut"}},
        {"params": {"sampling": {"seed": -1}}},
        {"params": {"sampling": {"logit_bias": {"1": 1.0}}}},
        {"params": {"sampling": {"mirostat": {"target": "x"}}}},
    ],
    ids=str,
)
def test_an_engine_request_with_a_value_of_another_type_is_refused(fields: dict[str, Any]) -> None:
    """In the engine it would end other requests, too."""
    payload = msgspec.msgpack.encode({"prompt_token_ids": [1], "max_tokens": 3} | fields)
    assert refusal(lambda: unpack(EngineRequest, payload, "name")).startswith("name: not a EngineRequest (")


def test_a_message_carries_only_the_fields_that_it_sets() -> None:
    assert msgspec.msgpack.decode(pack(DeltaDetails())) == {}
    assert msgspec.msgpack.decode(pack(DeltaDetails(has_token_ids=True))) == {"has_token_ids": True}
    assert len(pack(OutputBatch(1, 2, False, ((3, TokenDelta((5,))),)))) < 20
    assert len(pack(ChunkBatch(2, ((3, GenerationChunk(text="a")),)))) <= 24


def test_every_empty_output_batch_is_a_disconnect_check_and_some_of_the_others() -> None:
    """The check takes longer than all other work of the detokenizer; without it the engine stays busy."""
    item = (1, TokenDelta((1,)))
    serials = range(2 * BATCHES_PER_DISCONNECT_CHECK)
    assert all(OutputBatch(9, serial, False).is_disconnect_check for serial in serials)
    checks = [serial for serial in serials if OutputBatch(9, serial, False, (item,)).is_disconnect_check]
    assert checks == [0, BATCHES_PER_DISCONNECT_CHECK]


@pytest.mark.parametrize(
    ("fields", "is_text"),
    [
        ({}, True),
        ({"num_prompt_tokens": 0}, True),
        ({"token_ids": (1,)}, False),
        ({"logprobs": pack_logprobs([TokenLogprob(1, b"a", -1.0)])}, False),
        ({"prompt_token_ids": (1,)}, False),
        ({"finish_reason": FinishReason.STOP}, False),
        ({"usage": Usage(num_input_tokens=1, num_output_tokens=1)}, False),
    ],
)
def test_a_chunk_of_text_has_nothing_else(fields: dict[str, Any], is_text: bool) -> None:
    assert GenerationChunk(text="a", **fields).is_text is is_text


# --- single tensors -------------------------------------------------------------------------------------------------


def test_a_payload_travels_as_one_text() -> None:
    sent = message_tensor(CHUNK_BATCH, b"\xff\0a")
    assert {name: value.shape for name, value in sent.items()} == {"chunk_batch": (1, 1)}
    assert payload_of(sent, CHUNK_BATCH) == b"\xff\0a"
    two = {"chunk_batch": tensor(CHUNK_BATCH, b"a", b"b")}
    assert refusal(lambda: payload_of(two, CHUNK_BATCH)) == "chunk_batch: expected one element, got 2"


# --- chunks as the public outputs -----------------------------------------------------------------------------------

FULL = GenerationChunk(
    text="日本",
    token_ids=(1, 2),
    logprobs=pack_logprobs(
        [
            TokenLogprob(1, b"\xe6\x97", None),
            TokenLogprob(2, b"\xa5\xe6\x9c\xac", -0.5, (TopLogprob(2, b"\xa5", -0.5), TopLogprob(9, b"", -1.25))),
        ]
    ),
    num_prompt_tokens=1,
    prompt_token_ids=(0, 7),
    finish_reason=FinishReason.STOP,
    stop_reason="€",
    usage=Usage(num_input_tokens=5, num_output_tokens=7, num_cached_tokens=3, num_reasoning_tokens=2),
    cum_logprob=-0.5,
    timing=Timing(
        arrival_time_ns=1, first_scheduled_time_ns=2**40, first_token_time_ns=2**62, last_token_time_ns=2**62 + 1
    ),
    spans=(1, 1),
)
FULL_OUTPUTS: dict[str, list[Any]] = {
    "text_output": ["日本".encode()],
    "token_ids": [1, 2],
    "token_bytes": [b"\xe6\x97", b"\xa5\xe6\x9c\xac"],
    "output_log_probs": [math.nan, -0.5],
    # A token with fewer likely tokens is filled up.
    "top_logprob_token_ids": [-1, -1, 2, 9],
    "top_logprob_token_bytes": [b"", b"", b"\xa5", b""],
    "top_logprob_values": [math.nan, math.nan, -0.5, -1.25],
    "num_echoed_tokens": [1],
    "input_token_ids": [0, 7],
    "finish_reason": [b"stop"],
    "stop_reason": [json.dumps("€").encode()],
    "num_input_tokens": [5],
    "num_output_tokens": [7],
    "num_cached_tokens": [3],
    "num_reasoning_tokens": [2],
    "cum_log_probs": [-0.5],
    "arrival_time_ns": [1],
    "first_scheduled_time_ns": [2**40],
    "first_token_time_ns": [2**62],
    "last_token_time_ns": [2**62 + 1],
    "num_thinking_chars": [1, 1],
}


def test_a_chunk_fills_every_public_output() -> None:
    found = {name: value.tolist() for name, value in chunk_to_tensors(FULL).items()}
    assert repr(found) == repr({spec.name: [FULL_OUTPUTS[spec.name]] for spec in PUBLIC_OUTPUTS})  # NaN is not equal


@given(messages(GenerationChunk, logprobs=st.lists(messages(TokenLogprob), max_size=3).map(pack_logprobs)))
def test_any_chunk_has_the_datatypes_of_the_public_outputs_and_a_batch_of_one(chunk: GenerationChunk) -> None:
    specs = {spec.name: spec for spec in PUBLIC_OUTPUTS}
    for name, value in chunk_to_tensors(chunk).items():
        assert (value.dtype, value.ndim, len(value)) == (np.dtype(specs[name].dtype), 2, 1)


@pytest.mark.parametrize(
    ("chunk", "names"),
    [
        (GenerationChunk(text=""), set()),
        (GenerationChunk(text="a", token_ids=(1,)), {"token_ids"}),
        (GenerationChunk(text="", finish_reason=FinishReason.STOP, stop_reason=0), {"finish_reason", "stop_reason"}),
        (GenerationChunk(text="", stop_reason="", cum_logprob=0.0), {"stop_reason", "cum_log_probs"}),
        (
            GenerationChunk(text="", usage=Usage(num_input_tokens=0, num_output_tokens=0)),
            {"num_input_tokens", "num_output_tokens", "num_cached_tokens", "num_reasoning_tokens"},
        ),
        (
            GenerationChunk(text="a", logprobs=pack_logprobs([TokenLogprob(1, b"a", -1.0)])),
            {"token_bytes", "output_log_probs"},
        ),
    ],
)
def test_a_chunk_has_only_the_outputs_that_it_sets(chunk: GenerationChunk, names: set[str]) -> None:
    assert chunk_to_tensors(chunk).keys() == {"text_output", *names}


@pytest.mark.parametrize("stop_reason", ["5", 5])
def test_a_stop_word_differs_from_a_stop_token(stop_reason: str | int) -> None:
    stopped = chunk_to_tensors(GenerationChunk(text="", stop_reason=stop_reason))["stop_reason"]
    assert json.loads(stopped.item()) == stop_reason
