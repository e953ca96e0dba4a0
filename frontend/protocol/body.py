"""The base of every JSON object in a request: exact types, refused fields, ignored fields."""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from frontend.settings import Settings
from model_repository.contract.tensors import INPUTS

_LABELS = ("user", "safety_identifier", "prompt_cache_key", "metadata")


class Refused:
    """A known field without support, of OpenAI's API or of another server.

    Args:
        neutral: values that change nothing; null changes nothing in any field.
        instead: the field to use.
    """

    def __init__(self, *neutral: Any, instead: str = "") -> None:
        self.neutral, self.instead = neutral, instead


@functools.cache
def _defaults(model: type[BaseModel]) -> dict[str, Any]:
    """Return the values of the fields that an object need not have."""
    return {name: field.default for name, field in model.model_fields.items() if not field.is_required()}


class Body(BaseModel):
    """A JSON object in a request. Types are exact: neither true nor "5" is a number. null is the same as absent."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    refused: ClassVar[Mapping[str, Refused]] = {}
    # Known hints without effect, each with the values that change nothing. Other values are listed as ignored.
    hints: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @classmethod
    def made(cls, values: dict[str, Any]) -> Self:
        """Return an object of checked values, as `model_construct` does in seven times the time."""
        made = cls.__new__(cls)
        object.__setattr__(made, "__dict__", _defaults(cls) | values)
        object.__setattr__(made, "__pydantic_fields_set__", set(values))
        object.__setattr__(made, "__pydantic_extra__", {})
        object.__setattr__(made, "__pydantic_private__", None)
        return made

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
        for name, value in self.__dict__.items():
            if value is None and name in required:
                raise broken_rule(self._key(name), f"required when type is {json.dumps(self.type)}")
            if value is not None and name not in allowed:
                key = self._key(name)
                raise broken_rule(key, f"`{key}` does not go with type {json.dumps(self.type)}")
        return self


class OpenBody(TypedBody):
    """An object of one of many types. Those without a form are skipped and listed: their fields may be of any form."""

    # The only types that are skipped, each with the reason, and others are refused; None: any type is skipped.
    skipped: ClassVar[Mapping[str, str] | None] = None

    @property
    def is_skipped(self) -> bool:
        return self.type not in self.forms

    @model_validator(mode="before")
    @classmethod
    def _reduce_skipped(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not isinstance(kind := value.get("type"), str) or kind in cls.forms:
            return value
        return {name: each for name in cls.shared if isinstance(each := value.get(name), str)}

    @field_validator("type")
    @classmethod
    def _check_type(cls, value: str) -> str:
        if cls.skipped is not None and value not in cls.forms and value not in cls.skipped:
            known = ", ".join(sorted(filter(None, (*cls.forms, *cls.skipped))))
            raise PydanticCustomError("unsupported_value", f"not supported here, expected one of {known}")
        return value


class ModelBody(Body):
    """The body of a call of a model."""

    model: Annotated[
        str, Field(min_length=1, description="a model's id, an alias, or the name of a LoRA adapter or a preset")
    ]

    def thinking_controls(self) -> Iterator[tuple[str, str]]:
        """Yield the places of fields that control the model's thinking, and the variable of a template for each."""
        yield from ()

    def cache_fields(self) -> Iterator[str]:
        """Yield the names of fields that keep the prompt in the KV cache."""
        names = ("prompt_cache_options", "prompt_cache_retention")
        return (name for name in names if getattr(self, name, None) not in (None, "in_memory", "in-memory"))

    def past_thinking(self) -> Iterator[str]:
        """Yield the places of the thinking in earlier answers."""
        yield from ()

    def bookkeeping(self) -> dict[str, Any]:
        """Return the client's labels for the log."""
        return {name: value for name in _LABELS if (value := getattr(self, name, None)) is not None}


def limits_of(info: ValidationInfo) -> Settings:
    """Return the server's settings, or without them the defaults."""
    return info.context if isinstance(info.context, Settings) else Settings()


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


def optional(example: Any, description: str, *, needs: Mapping[str, Any] | None = None, **arguments: Any) -> Any:
    """Return an optional field.

    Args:
        example: a value that has an effect; None: the field is in no table.
        needs: the other fields that the example needs.
        arguments: further ones of pydantic's Field.
    """
    examples = None if example is None else [example]
    extra: Any = None if needs is None else {"x-needs": needs}
    return Field(default=None, examples=examples, description=description, json_schema_extra=extra, **arguments)


def declared(tensor: str, example: Any = None, description: str = "", **arguments: Any) -> Any:
    """Return an optional field with the range of a tensor, and its description if there is no other one."""
    spec = INPUTS[tensor]
    if spec.shape != (-1,):  # the range of a list's tensor is that of its items
        arguments |= {"gt" if spec.is_low_open else "ge": spec.low, "le": spec.highest}
    return optional(example, description or spec.doc, **arguments)
