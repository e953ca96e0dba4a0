"""Any tensors to KServe's gRPC messages and back, as gRPC clients of the public ensemble send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2
from tritonclient.utils import (
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_byte_tensor,
    triton_to_np_dtype,
)


def infer_request(model_name: str, tensors: Mapping[str, npt.NDArray[Any]], request_id: str = "") -> Any:
    """Return the protobuf message that sends these tensors to a model."""
    request = service_pb2.ModelInferRequest(model_name=model_name, id=request_id)
    for name, value in tensors.items():
        is_text = value.dtype == np.object_
        request.inputs.add(name=name, datatype=np_to_triton_dtype(value.dtype), shape=value.shape)
        request.raw_input_contents.append(b"".join(serialize_byte_tensor(value).flat) if is_text else value.tobytes())
    return request


def tensors_from_response(response: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the outputs of a response, by name."""
    return {
        output.name: _array(output.datatype, raw).reshape(output.shape)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def _array(datatype: str, raw: bytes) -> npt.NDArray[Any]:
    if datatype == "BYTES":
        return deserialize_bytes_tensor(raw)
    return np.frombuffer(raw, triton_to_np_dtype(datatype))


def tensors_from_request(request: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs of a request, by name, as a stage sees them."""
    return {
        sent.name: _array(sent.datatype, raw).reshape(sent.shape)
        for sent, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }


def infer_response(tensors: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Return a response with these outputs."""
    request = infer_request("", tensors)
    response = service_pb2.ModelInferResponse(raw_output_contents=request.raw_input_contents)
    for sent in request.inputs:
        response.outputs.add(name=sent.name, datatype=sent.datatype, shape=sent.shape)
    return response
