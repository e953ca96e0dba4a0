"""The messages of KServe's protocol, as Triton's own client reads and writes them."""

from __future__ import annotations

import pytest
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor

from frontend.triton.messages import infer_request, payload_of
from model_repository.contract.tensors import CHUNK_BATCH, CONTROL, OPEN_STREAM, OUTPUT_BATCH, REQUEST_BATCH
from tests.frontend.triton.server import infer_response

PAYLOADS = pytest.mark.parametrize("payload", [b"", "Grüße 🙂".encode(), b"\0\xff\x04\0\0\0", b"a" * 2**20])


@PAYLOADS
@pytest.mark.parametrize("spec", [REQUEST_BATCH, OPEN_STREAM, CONTROL])
def test_a_text_arrives_as_it_was_sent(spec, payload: bytes) -> None:
    request = infer_request("demo__requests", spec, payload, "3-5")
    assert (request.model_name, request.id) == ("demo__requests", "3-5")
    [sent], [raw] = request.inputs, request.raw_input_contents
    assert (sent.name, sent.datatype, list(sent.shape)) == (spec.name, "BYTES", [1, 1])
    assert deserialize_bytes_tensor(raw).tolist() == [payload]


@PAYLOADS
def test_a_text_is_read_as_it_was_sent(payload: bytes) -> None:
    assert payload_of(infer_response(CHUNK_BATCH, payload), CHUNK_BATCH) == payload


def test_a_text_is_found_among_other_outputs() -> None:
    response = service_pb2.ModelInferResponse()
    response.outputs.add(name="sequence_index", datatype="FP32", shape=[1, 1])
    response.raw_output_contents.append(b"\0\0\0\0")
    response.MergeFrom(infer_response(CHUNK_BATCH, b"a"))
    assert payload_of(response, CHUNK_BATCH) == b"a"


def test_a_response_without_the_output_is_no_answer() -> None:
    with pytest.raises(LookupError):
        payload_of(infer_response(OUTPUT_BATCH, b"a"), CHUNK_BATCH)


@pytest.mark.parametrize("payloads", [(), (b"a", b"b"), (b"", b"")])
def test_an_output_that_is_not_one_text_is_no_answer(payloads: tuple[bytes, ...]) -> None:
    with pytest.raises(ValueError, match="chunk_batch"):
        payload_of(infer_response(CHUNK_BATCH, *payloads), CHUNK_BATCH)
