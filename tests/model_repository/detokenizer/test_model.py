"""Triton's door to the detokenizer stage, with a fake of the Python backend's module."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from model_repository.contract.cancel_channel import CancelSender
from model_repository.contract.codec import message_tensor, pack, payload_of, unpack
from model_repository.contract.output import (
    ChunkBatch,
    DeltaDetails,
    DrawnLogprob,
    FinishReason,
    GenerationChunk,
    OutputBatch,
    Timing,
    TokenDelta,
    Usage,
)
from model_repository.contract.tensors import CHUNK_BATCH, OUTPUT_BATCH
from model_repository.detokenizer.text import Detokenizer
from tests.model_repository.python_backend import Request, stage_door

FINAL = 1
USAGE = Usage(num_input_tokens=3, num_output_tokens=1)
TIMES = ("arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns")
TOO_LATE = DeltaDetails(timing=Timing(**dict.fromkeys(TIMES, 2**63)))
LOGPROBS = (DrawnLogprob(-1.0), DrawnLogprob(-1.0))  # of two tokens
NO_ENGINE = "[invalid_value] output_batch: no engine sends such a batch ("
LAST = TokenDelta((1,), finish_reason=FinishReason.STOP, usage=USAGE)


@pytest.fixture
def model() -> Iterator[Any]:
    with stage_door("detokenizer") as door:
        door.detokenizer = Detokenizer([b"", b"Paris"], {})
        door.cancelled = []
        door.cancel_sender = SimpleNamespace(cancel=door.cancelled.append)
        yield door


def answer(model: Any, batch: OutputBatch | bytes, *, is_cancelled: bool = False) -> Any:
    """Return the only response to a batch; None if the stage closes the request without a response."""
    payload = batch if isinstance(batch, bytes) else pack(batch)
    request = Request(message_tensor(OUTPUT_BATCH, payload), is_cancelled=is_cancelled)
    model.execute([request])
    [(response, flags)] = request.sent
    assert flags == FINAL
    return response


def test_a_batch_of_a_frontend_is_answered_with_its_chunks(model: Any) -> None:
    response = answer(model, OutputBatch(9, 4, False, ((7, LAST), (8, "[engine_failed] x"))))
    tensors = {tensor.name(): tensor.as_numpy() for tensor in response.tensors}
    packed = array("i", [1]).tobytes()
    chunk = GenerationChunk(text="Paris", finish_reason=FinishReason.STOP, usage=USAGE, packed_token_ids=packed)
    expected = ChunkBatch(4, ((7, chunk), (8, "[engine_failed] x")))
    assert unpack(ChunkBatch, payload_of(tensors, CHUNK_BATCH), "chunk_batch") == expected


def test_a_batch_of_a_single_request_is_answered_with_public_outputs(model: Any) -> None:
    response = answer(model, OutputBatch(9, 4, True, ((0, LAST),)))
    assert {tensor.name(): tensor.value.tolist() for tensor in response.tensors} == {
        "text_output": [[b"Paris"]],
        "finish_reason": [[b"stop"]],
        "num_input_tokens": [[3]],
        "num_output_tokens": [[1]],
        "num_cached_tokens": [[0]],
        "num_reasoning_tokens": [[0]],
    }


def test_an_empty_batch_of_a_single_request_has_no_response(model: Any) -> None:
    """A client would see even an empty one."""
    assert answer(model, OutputBatch(9, 4, True)) is None


@pytest.mark.parametrize(
    ("batch", "is_noticed"),
    [
        (OutputBatch(9, 0, False, ((7, LAST),)), True),
        (OutputBatch(9, 1, False, ((7, LAST),)), False),
        (OutputBatch(9, 1, False), True),
        (OutputBatch(9, 4, True, ((0, LAST),)), True),
        (OutputBatch(9, 1, True), True),
    ],
)
def test_a_disconnect_check_reports_a_disconnected_client_to_the_engine(
    model: Any, batch: OutputBatch, is_noticed: bool
) -> None:
    response = answer(model, batch, is_cancelled=True)
    assert model.cancelled == ([9] if is_noticed else [])
    assert (response is None) == is_noticed


def test_a_disconnect_check_with_a_number_that_no_stream_has_is_refused(model: Any) -> None:
    model.cancel_sender = CancelSender("test")
    assert answer(model, OutputBatch(-1, 1, False), is_cancelled=True).error.message.startswith(NO_ENGINE)
    model.cancel_sender.close()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (b"nonsense", "[invalid_value] output_batch: not a OutputBatch ("),
        (OutputBatch(9, 4, False, ((7, TokenDelta((2,))),)), "[invalid_value] output_batch: 2 is not a token"),
        (OutputBatch(9, 4, True, ((0, TokenDelta((-1,))),)), "[invalid_value] output_batch: -1 is not a token"),
        (OutputBatch(9, 4, True, ((0, LAST), (0, LAST))), NO_ENGINE),
        (OutputBatch(9, 4, False, ((7, TokenDelta((1,), details=DeltaDetails(logprobs=LOGPROBS))),)), NO_ENGINE),
        (OutputBatch(9, 4, True, ((0, TokenDelta((1,), details=TOO_LATE)),)), NO_ENGINE),
    ],
)
def test_a_batch_that_no_engine_sends_is_refused(model: Any, batch: OutputBatch | bytes, message: str) -> None:
    error = answer(model, batch).error
    assert error.code == 3
    assert error.message.startswith(message)
