"""The base of every JSON object in a request: exact types, refused fields, ignored fields."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from frontend.settings import Settings
from model_repository.contract.tensors import INPUTS

# Names of other servers for fields: the field to use instead, and the values that change nothing.
type Peers = Mapping[str, tuple[str, tuple[Any, ...]]]

_LABELS = ("user", "safety_identifier", "prompt_cache_key", "metadata")


def refused_of(peers: Peers) -> dict[str, tuple[Any, ...]]:
    """Return the part of `Body.refused` for these names."""
    return {name: neutral for name, (_, neutral) in peers.items()}


def instead_of(peers: Peers) -> dict[str, str]:
    """Return the part of `Body.instead` for these names."""
    return {name: ours for name, (ours, _) in peers.items()}


class Body(BaseModel):
    """A JSON object in a request. Types are exact: neither true nor "5" is a number. null is the same as absent."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    # Known fields without support, each with the values that change nothing. null changes nothing in any field.
    refused: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    # What to use instead of a refused field.
    instead: ClassVar[Mapping[str, str]] = {}
    # Known hints without effect, each with the values that change nothing. Other values are listed as ignored.
    hints: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    def ignored_values(self) -> Iterator[str]:
        """Yield the places of the object's own known fields, and of items in them, that have values without effect."""
        yield from ()

    @property
    def is_skipped(self) -> bool:
        """Whether the whole object is ignored."""
        return False

    def parts(self) -> Iterator[tuple[str, Body]]:
        """Yield the objects directly inside this object, each with its place."""
        for name, value in self.__dict__.items():
            if value is None:  # most fields are
                continue
            if isinstance(value, Body):
                yield self._key(name), value
            elif isinstance(value, list) and value and isinstance(value[0], Body):
                yield from ((f"{self._key(name)}[{index}]", item) for index, item in enumerate(value))

    @classmethod
    def _key(cls, name: str) -> str:
        """Return a field's key in JSON."""
        return cls.model_fields[name].alias or name


type Forms = Mapping[str | None, tuple[Collection[str], Collection[str]]]


class TypedBody(Body):
    """An object with a `type`, which decides on the other fields."""

    # The required and the optional fields by the type; other types have no more than the shared fields.
    forms: ClassVar[Forms] = {}
    shared: ClassVar[Collection[str]] = ("type",)

    type: Any

    @model_validator(mode="after")
    def _check_fields_of_type(self) -> Self:
        required, optional = self.forms.get(self.type, ((), ()))
        allowed = {*self.shared, *required, *optional}
        for name in type(self).model_fields:
            has_value = getattr(self, name) is not None
            if name in required and not has_value:
                raise broken_rule(self._key(name), f'required when type is "{self.type}"')
            if has_value and name not in allowed:
                raise broken_rule(self._key(name), f'`{self._key(name)}` does not go with type "{self.type}"')
        return self


class ModelBody(Body):
    """The body of a call of a model."""

    model: Annotated[str, Field(min_length=1, description="a model's id, an alias, or a LoRA adapter's name")]

    def thinking_controls(self) -> Iterator[tuple[str, str]]:
        """Yield the places of fields that control the model's thinking, and the variable of a template for each."""
        yield from ()

    def past_thinking(self) -> Iterator[str]:
        """Yield the places of the thinking in earlier answers."""
        yield from ()

    def bookkeeping(self) -> dict[str, Any]:
        """Return the client's labels for the log."""
        return {name: value for name in _LABELS if (value := getattr(self, name, None)) is not None}


def limits_of(info: ValidationInfo) -> Settings:
    """Return the server's settings, or without them the defaults."""
    return info.context if isinstance(info.context, Settings) else Settings()


def needs(**fields: Any) -> dict[str, Any]:
    """Return an addition to a field's JSON schema: the other fields that the field needs."""
    return {"x-needs": fields}


def broken_rule(param: str, rule: str) -> PydanticCustomError:
    """Return the error of well-formed fields that contradict each other; `param` is the field to change."""
    return PydanticCustomError("broken_rule", "{rule}", {"param": param, "rule": rule})


def reduced(items: list[Any], served: Collection[str | None]) -> list[Any]:
    """Reduce objects of types that are not served to their types: their other fields may be of any form."""
    return [
        {"type": kind}
        if isinstance(item, dict) and isinstance(kind := item.get("type"), str) and kind not in served
        else item
        for item in items
    ]


def known_type(value: str, served: Collection[str | None], skipped: Collection[str]) -> str:
    """Return the type of an object. Those of skipped types are listed, and all others refused.

    Raises:
        PydanticCustomError: the type is neither served nor skipped.
    """
    if value not in served and value not in skipped:
        known = ", ".join(sorted(filter(None, (*served, *skipped))))
        raise PydanticCustomError("unsupported_value", "not supported here, expected one of {known}", {"known": known})
    return value


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
