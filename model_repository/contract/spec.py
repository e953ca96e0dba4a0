"""How tensors are declared: the annotation of a message's field names the tensor that carries it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

MAX_INT32 = 2**31 - 1
_NUMPY_DTYPES: dict[str, Any] = {
    "BYTES": np.object_,
    "BOOL": np.bool_,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT64": np.uint64,
    "FP32": np.float32,
}
_DATATYPES = {bool: "BOOL", int: "INT32", float: "FP32"}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor: `datatype` in KServe's words, `shape` with -1 for any length and without the batch dimension.

    In the annotation of a field, name, datatype and shape may be empty: they follow from the field's name and type.
    """

    name: str = ""
    datatype: str = ""
    shape: tuple[int, ...] = ()
    doc: str = ""
    low: float | None = None  # the smallest accepted number
    high: float | None = None  # the largest accepted number
    is_low_open: bool = False  # `low` itself is refused
    max_items: int | None = None
    max_chars: int | None = None  # each text's
    words: tuple[str, ...] = ()  # the only accepted texts; an empty text counts as missing
    has_token_ids: bool = False  # its numbers are ids of the model's vocabulary
    is_json: bool = False  # one text carries the field, as JSON
    is_negated: bool = False  # true in the tensor means false in the field
    neutral: tuple[Any, ...] | None = None  # only accepted values of a tensor without a field; they have no effect

    @property
    def dtype(self) -> Any:
        """The numpy dtype of the elements; object (of bytes) for BYTES."""
        return _NUMPY_DTYPES[self.datatype]

    @property
    def highest(self) -> float | None:
        """The largest accepted number: the declared one, or that of INT32; None: any."""
        return MAX_INT32 if self.high is None and self.datatype == "INT32" else self.high

    @property
    def has_rules(self) -> bool:
        """Whether it refuses some values of its datatype."""
        return bool(self.words) or {self.low, self.high, self.max_items, self.max_chars} != {None}


@dataclass(frozen=True, slots=True)
class StageSpec:
    """The inputs and outputs of one Triton model."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    is_decoupled: bool = False  # may answer a request any number of times, including zero
    max_batch_size: int = 1  # above 1: the largest number of waiting requests that Triton passes at a time


@dataclass(frozen=True, slots=True)
class TensorField:
    """A field of a message with its tensors: two for a mapping, zero for a message inside the message."""

    attribute: str
    kind: Any  # the field's type, or the type of its elements or keys
    is_list: bool
    default: Any  # msgspec.NODEFAULT: no default, or a factory makes it
    specs: tuple[TensorSpec, ...]

    @property
    def is_message(self) -> bool:
        """Whether it is a message, whose own fields have tensors."""
        return not self.specs


@functools.cache
def fields_of(message: type[msgspec.Struct]) -> tuple[TensorField, ...]:
    """Return the fields that tensors carry, in the order of their declaration."""
    fields = []
    defaults = {field.name: field.default for field in msgspec.structs.fields(message)}
    for attribute, hint in get_type_hints(message, include_extras=True).items():
        kind, declared = _unwrapped(hint)
        is_list = get_origin(kind) is tuple or len(declared) > 1
        elements = get_args(kind) if is_list else (kind,)
        # The two tensors of a mapping carry its keys and its values. Other groups of tensors declare their own types.
        kinds = elements if len(elements) == len(declared) else elements[:1] * len(declared)
        specs = tuple(_completed(*each, attribute, is_list) for each in zip(declared, kinds, strict=True))
        if specs or (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            fields.append(TensorField(attribute, elements[0], is_list, defaults[attribute], specs))
    return tuple(fields)


@functools.cache
def _names_and_defaults(message: type[msgspec.Struct], has: str) -> list[tuple[TensorField, str, Any]]:
    return [
        (field, field.attribute, field.default)
        for field in fields_of(message)
        if not has or any(getattr(spec, has) for spec in field.specs or specs_of(field.kind))
    ]


def set_fields(message: msgspec.Struct, has: str = "") -> list[tuple[TensorField, Any]]:
    """Return the fields with other values than None and their defaults, with the values.

    Args:
        has: only fields with a tensor for which this attribute is true.
    """
    found = []
    for field, name, default in _names_and_defaults(type(message), has):
        value = getattr(message, name)
        if value is not default and value is not None and value != default:  # most fields have the default itself
            found.append((field, value))
    return found


@functools.cache
def specs_of(message: type[msgspec.Struct]) -> tuple[TensorSpec, ...]:
    """Return the tensors that carry a message, including those of the messages inside it."""
    return tuple(
        spec for field in fields_of(message) for spec in (specs_of(field.kind) if field.is_message else field.specs)
    )


def token_ids_of(message: msgspec.Struct) -> Iterator[tuple[str, Collection[int]]]:
    """Yield the token ids in a message, with the names of their tensors. For a mapping, the ids are its keys."""
    for field, value in set_fields(message, "has_token_ids"):
        if field.is_message:
            yield from token_ids_of(value)
        elif value:
            yield field.specs[0].name, value


def _unwrapped(hint: Any) -> tuple[Any, list[TensorSpec]]:
    """Return a hint's type without `Annotated` and `| None`, and the tensors in its annotation."""
    declared: list[TensorSpec] = []
    if get_origin(hint) is Annotated:
        hint, *metadata = get_args(hint)
        declared = [item for item in metadata if isinstance(item, TensorSpec)]
    if isinstance(hint, UnionType):
        hint = next(kind for kind in get_args(hint) if kind is not type(None))
    return hint, declared


def _completed(spec: TensorSpec, kind: Any, attribute: str, is_list: bool) -> TensorSpec:
    words = spec.words
    if not words and isinstance(kind, type) and issubclass(kind, StrEnum):
        words = tuple(kind)
    return dataclasses.replace(
        spec,
        name=spec.name or attribute,
        datatype=spec.datatype or ("BYTES" if spec.is_json else _DATATYPES.get(kind, "BYTES")),
        shape=spec.shape or ((-1,) if is_list and not spec.is_json else (1,)),
        words=words,
    )
