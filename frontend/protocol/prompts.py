"""A field with one prompt or several of them, as text or as token ids."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field
from pydantic.functional_validators import PlainValidator
from pydantic_core import PydanticCustomError

from frontend.protocol.fields import TokenId
from model_repository.contract.spec import MAX_INT32

type Prompt = str | list[int]

_Text = Annotated[str, Field(min_length=1)]
_TokenIds = Annotated[list[TokenId], Field(min_length=1)]


def prompts_of(limit: int) -> PlainValidator:
    """Return the validator of a field with at most `limit` prompts.

    It returns the four forms as one: a list of texts or of lists of token ids, without empty ones.
    """

    def read(value: Any) -> list[Prompt]:
        if isinstance(value, list) and value and isinstance(value[0], str | list):
            if len(value) > limit:
                raise PydanticCustomError("too_long", f"{len(value)} values are more than {limit}")
            for index, item in enumerate(value):
                if type(item) is not type(value[0]):
                    raise PydanticCustomError("prompt_type", "the values must be all texts or all lists of token ids")
                _check(item, {"index": index} if len(value) > 1 else {})
            return value
        _check(value, {})
        return [value]

    return PlainValidator(
        read,
        json_schema_input_type=_Text
        | _TokenIds
        | Annotated[list[_Text], Field(min_length=1, max_length=limit)]
        | Annotated[list[_TokenIds], Field(min_length=1, max_length=limit)],
    )


def _check(value: Any, place: dict[str, Any]) -> None:
    if not isinstance(value, str | list):
        raise PydanticCustomError(
            "prompt_type", "Input should be a string, a list of token ids, or a list of one of these", place
        )
    if not value:
        raise PydanticCustomError("prompt_empty", f"the {'text' if isinstance(value, str) else 'list'} is empty", place)
    if isinstance(value, list) and (set(map(type, value)) != {int} or min(value) < 0 or max(value) > MAX_INT32):
        raise PydanticCustomError("token_ids", "Input should be a list of token ids, integers of at least 0", place)
