"""A gRPC client of the public ensemble, as tests see it: requests as the tensors that such a client sends."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy.typing as npt

from model_repository.contract.codec import tensor
from model_repository.contract.request import GenerationRequest, Params, SamplingParams
from model_repository.contract.spec import TensorField, fields_of


def request_to_tensors(request: GenerationRequest) -> dict[str, npt.NDArray[Any]]:
    """Return the public ensemble's inputs for a request: those that are not their fields' defaults."""
    params, sampling = request.params, request.params.sampling
    always = {"max_tokens": params.max_tokens, "temperature": sampling.temperature, "seed": sampling.seed}
    return {
        **message_to_tensors(request.prompt),
        **message_to_tensors(request),
        **message_to_tensors(params),
        **{
            spec.name: tensor(spec, always[field.attribute])
            for message in (Params, SamplingParams)
            for field in fields_of(message)
            for spec in field.specs
            if field.attribute in always
        },
    }


def message_to_tensors(message: msgspec.Struct) -> dict[str, npt.NDArray[Any]]:
    """Return the tensors of the fields that differ from their defaults, those of messages inside it among them."""
    tensors: dict[str, npt.NDArray[Any]] = {}
    for field in fields_of(type(message)):
        value = getattr(message, field.attribute)
        if value is None or value == field.default:
            continue
        if field.is_message:
            tensors |= message_to_tensors(value)
        else:
            tensors |= {
                spec.name: tensor(spec, *elements)
                for spec, elements in zip(field.specs, _columns(field, value), strict=True)
            }
    return tensors


def _columns(field: TensorField, value: Any) -> list[list[Any]]:
    """Return the elements of each of a field's tensors."""
    if len(field.specs) == 2:
        return [list(value), list(value.values())]
    [spec] = field.specs
    if spec.is_json:
        return [[json.dumps(value)]]
    if spec.is_negated:
        return [[not value]]
    return [list(value) if field.is_list else [value]]
