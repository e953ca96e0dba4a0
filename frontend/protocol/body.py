"""The base of every JSON object in a request: exact types, refused fields, ignored fields."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from frontend.settings import Settings
from model_repository.contract.tensors import INPUTS
from model_repository.structured_output.json_schema import ignored_keywords


class Body(BaseModel):
    """A JSON object in a request. Types are exact: neither true nor "5" is a number. null is the same as absent."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    # Known fields without support, each with the values that change nothing. null changes nothing in any field.
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    # Known hints without effect, each with the values that change nothing. Other values are listed as ignored.
    hints: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    # Fields that contain JSON schemas.
    schema_fields: ClassVar[tuple[str, ...]] = ()

    def ignored_keywords(self) -> Iterator[str]:
        """Yield the places of keywords that are not enforced in the object's own JSON schemas."""
        for name in self.schema_fields:
            schema = getattr(self, name)
            if isinstance(schema, str):  # JSON, or refused later
                with contextlib.suppress(orjson.JSONDecodeError):
                    schema = orjson.loads(schema)
            if isinstance(schema, dict):
                yield from ignored_keywords(schema, self._key(name))

    @property
    def is_skipped(self) -> bool:
        """Whether the whole object is ignored."""
        return False

    def parts(self) -> Iterator[tuple[str, Body]]:
        """Yield the objects directly inside this object, each with its place."""
        for name, value in self.__dict__.items():  # the fields; most are None
            if isinstance(value, Body):
                yield self._key(name), value
            elif isinstance(value, list) and value and isinstance(value[0], Body):
                yield from ((f"{self._key(name)}[{index}]", item) for index, item in enumerate(value))

    @classmethod
    def _key(cls, name: str) -> str:
        """Return a field's key in JSON."""
        return cls.model_fields[name].alias or name


class ModelBody(Body):
    """The body of a call of a model."""

    model: Annotated[str, Field(min_length=1, description="a model's id, an alias, or a LoRA adapter's name")]

    def bookkeeping(self) -> dict[str, Any]:
        """Return the client's labels for the log."""
        return {}


def limits_of(info: ValidationInfo) -> Settings:
    """Return the server's settings, or without them the defaults."""
    return info.context if isinstance(info.context, Settings) else Settings()


def needs(**fields: Any) -> dict[str, Any]:
    """Return an addition to a field's JSON schema: the other fields that the field needs."""
    return {"x-needs": fields}


def broken_rule(param: str, rule: str) -> PydanticCustomError:
    """Return the error of well-formed fields that contradict each other; `param` is the field to change."""
    return PydanticCustomError("broken_rule", "{rule}", {"param": param, "rule": rule})


def value_by_two_names(body: Body, name: str, other_name: str) -> Any:
    """Return the value of a field that has two names; None: it is set by neither.

    Raises:
        PydanticCustomError: the two have different values.
    """
    value, other = getattr(body, name), getattr(body, other_name)
    if value is not None and other not in (None, value):
        raise broken_rule(other_name, f"another name of {name}, with another value")
    return other if value is None else value


def declared(tensor: str, **field: Any) -> Any:
    """Return a field with the range and the description of a tensor; `field` overrides both."""
    spec = INPUTS[tensor]
    limits = {} if spec.shape == (-1,) else {"gt" if spec.is_low_open else "ge": spec.low, "le": spec.highest}
    arguments: dict[str, Any] = {"description": spec.doc, **limits, **field}
    return Field(**arguments)
