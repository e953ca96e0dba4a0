"""Refusals of structured outputs, and checks of JSON for all of its uses."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from model_repository.errors import InvalidRequest, Unsupported

FIELD = "guided_decoding_guide"

MAX_DEPTH = 64  # nested lists and objects: llguidance recurses on the native stack


def refuse(text: str) -> NoReturn:
    """Report a malformed or too large structured output."""
    raise InvalidRequest(text, FIELD)


def decline(text: str) -> NoReturn:
    """Report a meaningful structured output that cannot be enforced."""
    raise Unsupported(text, FIELD)


def parse_json(content: str, path: str) -> object:
    try:
        return json.loads(content, parse_constant=lambda word: refuse(f"{path}: {word} is no JSON"))
    except RecursionError as exc:
        raise InvalidRequest(f"{path}: nested too deeply", FIELD) from exc
    except ValueError as exc:
        raise InvalidRequest(f"{path}: this is no JSON: {str(exc)[:200]}", FIELD) from exc


def check_depth(value: object, path: str) -> None:
    """Refuse a value that is nested too deeply, level by level: recursion could overflow the stack."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            refuse(f"{path}: nested more than {MAX_DEPTH} deep")
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [inner for item in containers for inner in (item.values() if isinstance(item, dict) else item)]


def checked_list(value: object, path: str, *, is_filled: bool = False) -> list[Any]:
    if not isinstance(value, list) or (is_filled and not value):
        refuse(f"{path}: must be a list{', not empty' if is_filled else ''}")
    return value


def checked_object(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        refuse(f"{path}: must be an object")
    return value


def checked_names(value: object, path: str) -> list[str]:
    """Return the names of properties, without repetitions."""
    names = checked_list(value, path)
    if not all(isinstance(name, str) for name in names):
        refuse(f"{path}: must be texts")
    return list(dict.fromkeys(names))
