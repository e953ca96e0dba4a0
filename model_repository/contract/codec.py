"""Messages as tensors and back. The messages themselves declare their tensors: no field is named here."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from model_repository.contract.output import Chunk, TokenLogprob, TopLogprob
from model_repository.contract.spec import TensorField, TensorSpec, fields_of, set_fields
from model_repository.errors import InvalidRequest

type Tensors = Mapping[str, npt.NDArray[Any]]


class _Drawn(msgspec.Struct, frozen=True, array_like=True):
    """The first fields of a TokenLogprob."""

    token_id: int
    token_bytes: bytes
    logprob: float | None


_ENCODER = msgspec.msgpack.Encoder()
_LOGPROBS = msgspec.msgpack.Decoder(tuple[TokenLogprob, ...])
_DRAWN = msgspec.msgpack.Decoder(tuple[_Drawn, ...])
_PART_SIZE = 512  # log probabilities in a part: a reader spends about a millisecond on it
_NO_TOKEN = -1  # fills the lists of most likely tokens to the same length


@functools.cache
def _decoder(message: type[msgspec.Struct]) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(message)


def pack(message: msgspec.Struct) -> bytes:
    """Return a message as MessagePack."""
    return _ENCODER.encode(message)


def pack_batch(stream: str, requests: Iterable[tuple[int, bytes]]) -> bytes:
    """Return a RequestBatch of packed requests as MessagePack."""
    return _ENCODER.encode({"stream": stream, "items": [(number, msgspec.Raw(each)) for number, each in requests]})


def unpack[Message: msgspec.Struct](message: type[Message], payload: bytes, name: str) -> Message:
    """Return the message that `pack` encoded. `name` is its tensor's, for the error.

    Raises:
        InvalidRequest: the payload is not such a message; only a direct caller of a stage can send that.
    """
    try:
        unpacked: Message = _decoder(message).decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidRequest(f"not a {message.__name__} ({exc})", name) from exc
    return unpacked


def pack_logprobs(logprobs: Iterable[TokenLogprob]) -> tuple[bytes, ...]:
    """Return log probabilities as parts of bounded size: some hundred tokens have more than a reader may do at once."""
    parts: list[bytes] = []
    part: list[TokenLogprob] = []
    size = 0
    for item in logprobs:
        part.append(item)
        size += 1 + len(item.top)
        if size >= _PART_SIZE:
            parts.append(_ENCODER.encode(part))
            part, size = [], 0
    return (*parts, _ENCODER.encode(part)) if part else tuple(parts)


def unpack_logprobs(parts: Iterable[bytes]) -> Iterator[TokenLogprob]:
    """Yield the log probabilities that `pack_logprobs` packed; each part is decoded when it is reached."""
    for part in parts:
        yield from _LOGPROBS.decode(part)


def unpack_drawn(parts: Iterable[bytes]) -> Iterator[float | None]:
    """Yield the log probabilities of the drawn tokens alone, which takes a tenth of the time."""
    for part in parts:
        for drawn in _DRAWN.decode(part):
            yield drawn.logprob


def message_tensor(spec: TensorSpec, payload: bytes) -> dict[str, npt.NDArray[Any]]:
    """Return the only tensor of a request or response: one element, shape [1, 1]."""
    return {spec.name: np.array([[payload]], dtype=np.object_)}


def payload_of(tensors: Tensors, spec: TensorSpec) -> bytes:
    """Return the only element of a tensor.

    Raises:
        InvalidRequest: the tensor is missing or has another number of elements.
    """
    if spec.name not in tensors:
        raise InvalidRequest("is missing", spec.name)
    payload: bytes = _only(spec, tensors[spec.name].reshape(-1).tolist())
    return payload


def read_message(message: type[msgspec.Struct], tensors: Tensors) -> dict[str, Any]:
    """Return the fields of a message that a client's tensors carry, as a nested dictionary.

    An empty text counts as missing where only certain words are accepted, and is left out of a list.

    Raises:
        InvalidRequest: a tensor has not exactly one element, or is not UTF-8, not JSON or not a known word.
    """
    values: dict[str, Any] = {}
    for field in fields_of(message):
        if field.is_message:
            if inner := read_message(field.kind, tensors):
                values[field.attribute] = inner
        elif any(spec.name in tensors for spec in field.specs):
            value = _read_field(field, tensors)
            if value is not None:
                values[field.attribute] = value
    return values


def _read_field(field: TensorField, tensors: Tensors) -> Any:
    if len(field.specs) == 2:
        return _read_mapping(*field.specs, tensors)
    [spec] = field.specs
    elements = tensors[spec.name].reshape(-1).tolist()
    if spec.is_json:
        return _read_json(spec, _only(spec, elements))
    if field.kind is not bytes and spec.datatype == "BYTES":
        elements = [_read_text(spec, element) for element in elements]
    if field.is_list:
        return tuple(element for element in elements if element != "")
    value = _only(spec, elements)
    if spec.words:
        return _read_word(field, value) if value else None
    return not value if spec.is_negated else value


def _read_mapping(key_spec: TensorSpec, value_spec: TensorSpec, tensors: Tensors) -> dict[Any, Any]:
    keys, values = (
        tensors[spec.name].reshape(-1).tolist() if spec.name in tensors else [] for spec in (key_spec, value_spec)
    )
    if len(keys) != len(values):
        rule = f"{len(values)} values for {len(keys)} of {key_spec.name}: there must be one for each"
        raise InvalidRequest(rule, value_spec.name)
    return dict(zip(keys, values, strict=True))


def _read_text(spec: TensorSpec, value: bytes | str) -> str:
    try:
        return value if isinstance(value, str) else value.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"not UTF-8 at byte {exc.start}", spec.name) from exc


def _read_json(spec: TensorSpec, value: bytes | str) -> Any:
    try:
        return json.loads(_read_text(spec, value))
    except (ValueError, RecursionError) as exc:
        raise InvalidRequest(f"not JSON ({exc})", spec.name) from exc


def _read_word(field: TensorField, value: str) -> Any:
    [spec] = field.specs
    if value not in spec.words:
        raise InvalidRequest(f"{value!r} must be one of {', '.join(spec.words)}", spec.name)
    return field.kind(value)


def _only(spec: TensorSpec, elements: Sequence[Any]) -> Any:
    if len(elements) != 1:
        raise InvalidRequest(f"expected one element, got {len(elements)}", spec.name)
    return elements[0]


def chunk_to_tensors(chunk: Chunk) -> dict[str, npt.NDArray[Any]]:
    """Return the public ensemble's outputs for a chunk, by name; fields with default values have no tensor."""
    tensors: dict[str, npt.NDArray[Any]] = {}
    for field, value in set_fields(chunk):
        if field.is_message:
            tensors |= {
                inner.specs[0].name: tensor(inner.specs[0], getattr(value, inner.attribute))
                for inner in fields_of(field.kind)
            }
        elif isinstance(value, bytes):
            [spec] = field.specs
            tensors[spec.name] = np.frombuffer(value, spec.dtype)[None]
        elif len(field.specs) == 1:
            [spec] = field.specs
            tensors[spec.name] = tensor(
                spec, *(value if field.is_list else [json.dumps(value) if spec.is_json else value])
            )
        else:
            tensors |= _logprob_tensors(field.specs, [*unpack_logprobs(value)])
    return tensors


def _logprob_tensors(specs: Sequence[TensorSpec], logprobs: Sequence[TokenLogprob]) -> dict[str, npt.NDArray[Any]]:
    num_top = max(len(item.top) for item in logprobs)
    missing = TopLogprob(_NO_TOKEN, b"", math.nan)
    top = [each for item in logprobs for each in (*item.top, *[missing] * (num_top - len(item.top)))]
    columns: tuple[list[Any], ...] = (
        [item.token_bytes for item in logprobs],
        [math.nan if item.logprob is None else item.logprob for item in logprobs],
        [item.token_id for item in top],
        [item.token_bytes for item in top],
        [item.logprob for item in top],
    )
    return {spec.name: tensor(spec, *column) for spec, column in zip(specs, columns, strict=True) if column}


def tensor(spec: TensorSpec, *elements: Any) -> npt.NDArray[Any]:
    """Return elements as the tensor of one request, shape [1, num_elements]. Text becomes UTF-8 bytes."""
    if spec.datatype == "BYTES":
        elements = tuple(item.encode() if isinstance(item, str) else item for item in elements)
    return np.array([elements], dtype=spec.dtype)
