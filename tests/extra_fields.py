"""Fields of an answer that the types of a client do not know."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel


def refuse_extra_fields(value: Any, known: Collection[str] = ()) -> None:
    """Refuse fields without a type at any depth, but for those known to be documented."""
    if isinstance(value, list):
        for item in value:
            refuse_extra_fields(item, known)
    elif isinstance(value, BaseModel):
        assert not {*(value.model_extra or ())} - {*known}, value
        for name in type(value).model_fields:
            refuse_extra_fields(getattr(value, name), known)
