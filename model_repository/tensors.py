"""Single tensors to plain values and back, with the checks that the contract states. Shape: [1, *spec.shape]."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from model_repository.contract import TensorSpec
from model_repository.errors import InvalidRequest

Tensors = Mapping[str, npt.NDArray[Any]]


def num_bytes(tensors: Tensors) -> int:
    """Return how much they carry; of texts, what these take themselves."""
    values = tensors.values()
    return sum(sum(map(len, value.flat)) if value.dtype == np.object_ else value.nbytes for value in values)


def array(spec: TensorSpec, *elements: Any) -> npt.NDArray[Any]:
    """Return the elements as a tensor of one request, shape [1, num_elements]; text becomes UTF-8 bytes."""
    if spec.datatype == "BYTES":
        encoded = [item.encode("utf-8", "surrogatepass") if isinstance(item, str) else item for item in elements]
        return np.array([encoded], dtype=np.object_)
    return np.array([elements], dtype=spec.dtype)


def scalar(tensors: Tensors, spec: TensorSpec, default: Any) -> Any:
    """Return the one element of a tensor, or the default when it was not sent.

    Raises:
        InvalidRequest: it has another number of elements.
    """
    if spec.name not in tensors:
        return default
    items = tensors[spec.name].reshape(-1).tolist()
    if len(items) != 1:
        raise InvalidRequest(f"expected one element, got {len(items)}", spec.name)
    return items[0]


def number(tensors: Tensors, spec: TensorSpec, default: float) -> float:
    """Return the one number of a tensor.

    Raises:
        InvalidRequest: it is outside the range in the contract.
    """
    value: float = scalar(tensors, spec, default)
    _check_range(spec, value)
    return value


def numbers(tensors: Tensors, spec: TensorSpec) -> list[Any]:
    """Return the numbers of a tensor; none when it was not sent.

    Raises:
        InvalidRequest: one is outside the range in the contract.
    """
    values = tensors[spec.name].reshape(-1).tolist() if spec.name in tensors else []
    for value in values:
        _check_range(spec, value)
    return values


def _check_range(spec: TensorSpec, value: float) -> None:
    if spec.low is None and spec.high is None:
        return  # NaN among them, which stands for no number in outputs
    low = -np.inf if spec.low is None else spec.low
    high = np.inf if spec.high is None else spec.high
    if low <= value <= high and not (spec.is_low_open and value == low):  # NaN fails every comparison
        return
    rule = f"must be {'above' if spec.is_low_open else 'at least'} {low}" if low > -np.inf else "must be"
    upper = f"{' and' if low > -np.inf else ''} at most {high}" if high < np.inf else ""
    raise InvalidRequest(f"{value} {rule}{upper}", spec.name)


def text(tensors: Tensors, spec: TensorSpec) -> str:
    """Return the one text of a tensor; empty when it was not sent.

    Raises:
        InvalidRequest: it is not UTF-8.
    """
    return _decode(scalar(tensors, spec, b""), spec)


def texts(tensors: Tensors, spec: TensorSpec) -> list[str]:
    """Return the texts of a tensor; none when it was not sent.

    Raises:
        InvalidRequest: one is not UTF-8.
    """
    return [_decode(item, spec) for item in tensors[spec.name].reshape(-1).tolist()] if spec.name in tensors else []


def json_value(tensors: Tensors, spec: TensorSpec, default: Any) -> Any:
    """Return the JSON value in a tensor's one text, or the default when it was not sent.

    Raises:
        InvalidRequest: it is not JSON.
    """
    if spec.name not in tensors:
        return default
    try:
        return json.loads(text(tensors, spec))
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"not JSON ({exc})", spec.name) from exc


def _decode(value: bytes | str, spec: TensorSpec) -> str:
    try:
        return value if isinstance(value, str) else value.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"not UTF-8 at byte {exc.start}", spec.name) from exc
