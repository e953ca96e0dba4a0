"""Tensors to the messages of KServe's gRPC protocol and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from model_repository import contract
from model_repository.contract import TensorSpec

_INPUTS = {spec.name: spec for stage in contract.STAGES.values() for spec in stage.inputs}
_OUTPUTS = {spec.name: spec for stage in contract.STAGES.values() for spec in stage.outputs}

type Tensors = Mapping[str, npt.NDArray[Any]]


def infer_request(model_name: str, tensors: Tensors, request_id: str = "") -> Any:
    """Return the protobuf message that sends these tensors to a model; its responses carry the id, errors too."""
    request = service_pb2.ModelInferRequest(model_name=model_name, id=request_id)
    for name, tensor in tensors.items():
        request.inputs.add(name=name, datatype=_INPUTS[name].datatype, shape=tensor.shape)
        request.raw_input_contents.append(_raw(tensor))
    return request


def _raw(tensor: npt.NDArray[Any]) -> bytes:
    """Return a tensor's bytes; those of texts each after its length, as KServe's protocol says."""
    if tensor.dtype != np.object_:
        return tensor.tobytes()
    return b"".join(len(item).to_bytes(4, "little") + item for item in tensor.reshape(-1).tolist())


def tensors_from_response(response: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the outputs of a response that the contract knows, by name."""
    return {output.name: _tensor(spec, raw, output.shape) for output, spec, raw in _known_outputs(response)}


def elements_from_response(response: Any) -> dict[str, list[Any]]:
    """Return the same without their shapes, as plain values: where there are few, an array costs more than they do."""
    return {output.name: _elements(spec, raw) for output, spec, raw in _known_outputs(response)}


def _known_outputs(response: Any) -> Iterator[tuple[Any, TensorSpec, bytes]]:
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        if output.name in _OUTPUTS:
            yield output, _OUTPUTS[output.name], raw


def _tensor(spec: TensorSpec, raw: bytes, shape: Any) -> npt.NDArray[Any]:
    if spec.datatype == "BYTES":
        return np.array(_elements(spec, raw), dtype=np.object_).reshape(shape)
    return np.frombuffer(raw, dtype=spec.dtype).reshape(shape)


def _elements(spec: TensorSpec, raw: bytes) -> list[Any]:
    if spec.datatype != "BYTES":
        values: list[Any] = np.frombuffer(raw, dtype=spec.dtype).tolist()
        return values
    items, start = [], 0
    while start < len(raw):
        end = start + 4 + int.from_bytes(raw[start : start + 4], "little")
        items.append(raw[start + 4 : end])
        start = end
    return items
