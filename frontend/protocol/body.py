"""What every JSON object of a request has: exact types, fields that are refused, and ignored ones, which are listed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import orjson
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from model_repository.contract.tensors import INPUTS
from model_repository.guides.json_schema import ignored_keywords

MAX_INT32 = 2**31 - 1  # what the tensors hold


class Body(BaseModel):
    """A JSON object of a request. Types are exact: neither true nor "5" is a number. null is the same as absent."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    # Fields that OpenAI's API or a peer's has and we do not serve, each with the values that change nothing. null never
    # does. A field that nobody knows is in neither place.
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    # Hints of such an API that no model here follows: accepted, and listed with the unknown fields. The values change
    # nothing and are not listed.
    hints: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    # Those that hold JSON schemas, which are enforced as far as they can be.
    schema_fields: ClassVar[tuple[str, ...]] = ()

    def ignored_keywords(self) -> Iterator[str]:
        """Yield the places of the keywords that its own JSON schemas are enforced without."""
        for name in self.schema_fields:
            field, schema = type(self).model_fields[name], getattr(self, name)
            if isinstance(schema, str):  # JSON, or refused later
                with contextlib.suppress(orjson.JSONDecodeError):
                    schema = orjson.loads(schema)
            if isinstance(schema, dict):
                yield from ignored_keywords(schema, field.alias or name)

    def parts(self) -> Iterator[tuple[str, Body]]:
        """Yield the objects inside this one, each with its place."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, Body):
                yield field.alias or name, value
            elif isinstance(value, list) and value and isinstance(value[0], Body):
                yield from ((f"{field.alias or name}[{index}]", item) for index, item in enumerate(value))


def needs(**fields: Any) -> dict[str, Any]:
    """Return the mark, in a field's JSON schema, of other fields without which it is refused."""
    return {"x-needs": fields}


def broken_rule(param: str, rule: str) -> PydanticCustomError:
    """Return the error of fields that are well-formed each and do not go together; `param` is the one to change."""
    return PydanticCustomError("broken_rule", "{rule}", {"param": param, "rule": rule})


def declared(tensor: str, **field: Any) -> Any:
    """Return a field with the range and, unless another one is given, the meaning of a tensor of the contract."""
    spec = INPUTS[tensor]
    high = MAX_INT32 if spec.high is None and spec.datatype == "INT32" else spec.high
    limits = {} if spec.shape == (-1,) else {"gt" if spec.is_low_open else "ge": spec.low, "le": high}
    arguments: dict[str, Any] = {"description": spec.doc, **limits, **field}
    return Field(**arguments)
