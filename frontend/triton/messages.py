"""KServe's gRPC messages: each request and each response of ours carries one text, in one tensor."""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import service_pb2

from model_repository.contract.spec import TensorSpec

_LENGTH_BYTES = 4  # little-endian length that precedes each text of a BYTES tensor


def infer_request(model_name: str, spec: TensorSpec, payload: bytes, request_id: str = "") -> Any:
    """Return the protobuf message that sends a text to a model. Its responses and errors have the same id."""
    request = service_pb2.ModelInferRequest(model_name=model_name, id=request_id)
    request.inputs.add(name=spec.name, datatype=spec.datatype, shape=(1, *spec.shape))
    request.raw_input_contents.append(len(payload).to_bytes(_LENGTH_BYTES, "little") + payload)
    return request


def payload_of(response: Any, spec: TensorSpec) -> bytes:
    """Return the text in an output.

    Raises:
        LookupError: the response does not have that output.
        ValueError: the output is not one text.
    """
    raw: bytes = {output.name: raw for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)}[
        spec.name
    ]
    payload = raw[_LENGTH_BYTES:]
    if len(raw) != _LENGTH_BYTES + int.from_bytes(raw[:_LENGTH_BYTES], "little"):
        raise ValueError(f"{spec.name}: expected one text")
    return payload
