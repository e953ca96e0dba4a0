"""Messages as MessagePack, and as tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from model_repository.contract.codec import (
    chunk_to_tensors,
    message_tensor,
    pack,
    payload_of,
    read_message,
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
from model_repository.contract.rules import check_declared
from model_repository.contract.spec import TensorSpec, specs_of
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
@given(data=st.data())
def test_a_message_survives_its_payload(message: type[Struct], data: st.DataObject) -> None:
    sent = data.draw(messages(message))
    assert unpack(message, pack(sent), "name") == sent


@pytest.mark.parametrize("message", SENT)
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
@pytest.mark.parametrize("payload", [b"", b"nonsense", b"\xc0", b"\x90", b"\x80", b"\xc1", b"\x91" * 100_000])
def test_a_payload_of_another_form_is_refused(message: type[Struct], payload: bytes) -> None:
    assert refusal(lambda: unpack(message, payload, "name")).startswith(f"name: not a {message.__name__} (")


def test_a_text_that_is_not_utf8_is_refused() -> None:
    payload = pack(TokenizeAnswer((), ("abc",))).replace(b"abc", b"a\xffc")
    assert refusal(lambda: unpack(TokenizeAnswer, payload, "tokens")).startswith("tokens: not a TokenizeAnswer (")


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": "5"},
        {"max_tokens": True},
        {"prompt_token_ids": ["a"]},
        {"structured_output": {"format": "other"}},
        {"structured_output": {"format": "regex", "content": 5}},
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
    assert len(pack(ChunkBatch(2, ((3, GenerationChunk(text="a")),)))) < 20


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
        ({"logprobs": (TokenLogprob(1, b"a", -1.0),)}, False),
        ({"prompt_token_ids": (1,)}, False),
        ({"finish_reason": FinishReason.STOP}, False),
        ({"usage": Usage(num_input_tokens=1, num_output_tokens=1)}, False),
    ],
)
def test_a_chunk_of_text_has_nothing_else(fields: dict[str, Any], is_text: bool) -> None:
    assert GenerationChunk(text="a", **fields).is_text is is_text


# --- single tensors -------------------------------------------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Inner(Struct):
    text: Annotated[str, TensorSpec()] = ""
    files: Annotated[tuple[bytes, ...], TensorSpec()] = ()


class Message(Struct):
    count: Annotated[int, TensorSpec(low=0)] = 0
    share: Annotated[float, TensorSpec(low=0, high=1, is_low_open=True)] = 1.0
    capped: Annotated[float, TensorSpec(high=5)] = 0.0
    any: Annotated[float, TensorSpec()] = 0.0
    counts: Annotated[tuple[int, ...], TensorSpec(low=0)] = ()
    texts: Annotated[tuple[str, ...], TensorSpec(max_items=2, max_chars=4)] = ()
    colour: Annotated[Colour, TensorSpec()] = Colour.RED
    is_open: Annotated[bool, TensorSpec("is_closed", is_negated=True)] = True
    value: Annotated[Any, TensorSpec(is_json=True)] = None
    bias: Annotated[dict[int, float], TensorSpec("keys", low=0), TensorSpec("values", high=1)] = {}
    inner: Inner | None = None


SPECS = {spec.name: spec for spec in specs_of(Message)}


def read(**sent: list[Any]) -> dict[str, Any]:
    """Return the fields of a message whose tensors have these elements."""
    return read_message(Message, {name: tensor(SPECS[name], *elements) for name, elements in sent.items()})


def test_a_payload_travels_as_one_text() -> None:
    sent = message_tensor(CHUNK_BATCH, b"\xff\0a")
    assert {name: value.shape for name, value in sent.items()} == {"chunk_batch": (1, 1)}
    assert payload_of(sent, CHUNK_BATCH) == b"\xff\0a"
    two = {"chunk_batch": tensor(CHUNK_BATCH, b"a", b"b")}
    assert refusal(lambda: payload_of(two, CHUNK_BATCH)) == "chunk_batch: expected one element, got 2"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({}, {}),
        ({"count": [0]}, {"count": 0}),
        ({"count": [2**31 - 1]}, {"count": 2**31 - 1}),
        ({"share": [2**-149]}, {"share": 2**-149}),
        ({"share": [1]}, {"share": 1.0}),
        ({"capped": [-1024]}, {"capped": -1024.0}),
        ({"capped": [5]}, {"capped": 5.0}),
        ({"any": [np.inf]}, {"any": math.inf}),
        ({"counts": [0, 1]}, {"counts": (0, 1)}),
        ({"counts": []}, {"counts": ()}),
        ({"texts": ["", "日本", ""]}, {"texts": ("日本",)}),
        ({"colour": ["blue"]}, {"colour": Colour.BLUE}),
        ({"colour": [""]}, {}),
        ({"is_closed": [True]}, {"is_open": False}),
        ({"is_closed": [False]}, {"is_open": True}),
        ({"value": ['{"a": [1, null]}']}, {"value": {"a": [1, None]}}),
        ({"keys": [2, 1], "values": [0.5, -3.0]}, {"bias": {2: 0.5, 1: -3.0}}),
        ({"text": ["é\0"]}, {"inner": {"text": "é\0"}}),
        ({"files": [b"\xff", b""]}, {"inner": {"files": (b"\xff", b"")}}),
    ],
    ids=str,
)
def test_a_field_is_read_from_its_tensors(sent: dict[str, list[Any]], expected: dict[str, Any]) -> None:
    found = read(**sent)
    assert found == expected
    assert repr(found) == repr(expected)  # 0, 0.0 and False are equal


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({"count": []}, "count: expected one element, got 0"),
        ({"count": [1, 2]}, "count: expected one element, got 2"),
        ({"text": ["a", "b"]}, "text: expected one element, got 2"),
        ({"value": ["1", "2"]}, "value: expected one element, got 2"),
        ({"count": [-1]}, "count: -1 must be at least 0"),
        ({"counts": [1, -1]}, "counts: -1 must be at least 0"),
        ({"share": [0]}, "share: 0.0 must be above 0 and at most 1"),
        ({"share": [1.5]}, "share: 1.5 must be above 0 and at most 1"),
        ({"capped": [5.5]}, "capped: 5.5 must be at most 5"),
        ({"capped": [np.nan]}, "capped: nan must be at most 5"),
        ({"keys": [-1], "values": [0]}, "keys: -1 must be at least 0"),
        ({"keys": [1], "values": [2]}, "values: 2.0 must be at most 1"),
        ({"keys": [1, 2], "values": [1]}, "values: 1 values for 2 of keys: there must be one for each"),
        ({"values": [1]}, "values: 1 values for 0 of keys: there must be one for each"),
        ({"texts": ["a"] * 3}, "texts: 3 elements: there may be 2"),
        ({"texts": ["a", "bcdef"]}, "texts: a text of 5 characters: it may have 4"),
        ({"colour": ["green"]}, "colour: 'green' must be one of red, blue"),
        ({"text": [b"ab\xff"]}, "text: not UTF-8 at byte 2"),
        ({"texts": ["a", b"\xff"]}, "texts: not UTF-8 at byte 0"),
        ({"text": ["a\ud800".encode("utf-8", "surrogatepass")]}, "text: not UTF-8 at byte 1"),
        ({"value": [b"\xff"]}, "value: not UTF-8 at byte 0"),
    ],
    ids=str,
)
def test_a_tensor_that_breaks_its_declaration_is_refused(sent: dict[str, list[Any]], message: str) -> None:
    assert refusal(lambda: check_declared(Message(**read(**sent)))) == message


@pytest.mark.parametrize("payload", ["", "{", "[" * 100_000])
def test_a_text_that_is_not_json_is_refused(payload: str) -> None:
    assert refusal(lambda: read(value=[payload])).startswith("value: not JSON (")


# --- chunks as the public outputs -----------------------------------------------------------------------------------

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
    usage=Usage(num_input_tokens=5, num_output_tokens=7, num_cached_tokens=3),
    cum_logprob=-0.5,
    timing=Timing(
        arrival_time_ns=1, first_scheduled_time_ns=2**40, first_token_time_ns=2**62, last_token_time_ns=2**62 + 1
    ),
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
    "cum_log_probs": [-0.5],
    "arrival_time_ns": [1],
    "first_scheduled_time_ns": [2**40],
    "first_token_time_ns": [2**62],
    "last_token_time_ns": [2**62 + 1],
}


def test_a_chunk_fills_every_public_output() -> None:
    found = {name: value.tolist() for name, value in chunk_to_tensors(FULL).items()}
    assert repr(found) == repr({spec.name: [FULL_OUTPUTS[spec.name]] for spec in PUBLIC_OUTPUTS})  # NaN is not equal


@given(messages(GenerationChunk))
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
            {"num_input_tokens", "num_output_tokens", "num_cached_tokens"},
        ),
        (GenerationChunk(text="a", logprobs=(TokenLogprob(1, b"a", -1.0),)), {"token_bytes", "output_log_probs"}),
    ],
)
def test_a_chunk_has_only_the_outputs_that_it_sets(chunk: GenerationChunk, names: set[str]) -> None:
    assert chunk_to_tensors(chunk).keys() == {"text_output", *names}


@pytest.mark.parametrize("stop_reason", ["5", 5])
def test_a_stop_word_differs_from_a_stop_token(stop_reason: str | int) -> None:
    stopped = chunk_to_tensors(GenerationChunk(text="", stop_reason=stop_reason))["stop_reason"]
    assert json.loads(stopped.item()) == stop_reason
