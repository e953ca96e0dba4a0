"""From the bytes of a body to a checked request, or to an error that names field, value and rule."""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import ValidationError

from frontend.errors import (
    MAX_DETAILS,
    APIError,
    InvalidJSON,
    InvalidRequest,
    UnsupportedValue,
    ValidationFailed,
    shown,
)
from frontend.protocol.body import Body
from frontend.settings import Settings
from model_repository.nesting import levels

_MAX_CONTAINERS = 20_000  # lists and objects in a body


def json_object(body: bytes, max_depth: int) -> dict[str, Any]:
    """Parse a body. Lone surrogates, NaN, Infinity and bottomless nesting are no JSON here.

    Raises:
        InvalidJSON: it is not a JSON object in UTF-8.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidJSON(f"The body is not valid JSON in UTF-8: {exc}") from exc
    if not isinstance(value, dict):
        raise InvalidJSON(f"The body must be a JSON object, not {shown(value)}")
    if body.count(b"{") + body.count(b"[") > max_depth:
        _refuse_bombs(value, max_depth)
    return value


def _refuse_bombs(value: Any, max_depth: int) -> None:
    """Refuse lists and objects that stand in one another too often, or are too many: each costs a check later."""
    num_containers = 0
    for depth, level in enumerate(levels(value)):
        num_here = sum(isinstance(item, dict | list) for item in level)
        num_containers += num_here
        if num_containers > _MAX_CONTAINERS:
            raise InvalidJSON(f"The body has more than {_MAX_CONTAINERS} lists and objects")
        if num_here and depth >= max_depth:
            raise InvalidJSON(f"The body is nested deeper than {max_depth} levels")


def parse[Request: Body](model: type[Request], body: bytes, settings: Settings) -> tuple[Request, list[str]]:
    """Read a body; return it with the names in it that nobody knows.

    Raises:
        APIError: the body breaks a rule; the error names field, value and rule.
    """
    value = json_object(body, settings.max_json_depth)
    if settings.default_model and value.get("model") is None:
        value["model"] = settings.default_model
    context = {
        "max_logprobs": settings.max_logprobs,
        "max_content_parts": settings.max_content_parts,
        "max_prompts": settings.max_choices,
    }
    try:
        request = model.model_validate(value, by_alias=True, context=context)
    except ValidationError as exc:
        raise _error_from_validation(exc, settings.validation_status) from exc
    unknown = _refuse_unsupported(request)
    if unknown and settings.strict_extra:
        raise InvalidRequest(f"{unknown[0]}: unknown field", param=unknown[0], code="unknown_parameter")
    return request, unknown


def _refuse_unsupported(body: Body, place: str = "") -> list[str]:
    """Return the names that nobody knows, in this object and in those inside it.

    Raises:
        UnsupportedValue: a known field that is not served would change the answer.
    """
    unknown = []
    for name, value in (body.model_extra or {}).items():
        if name not in body.refused:
            unknown.append(place + name)
        elif not _is_neutral(value, body.refused[name]):
            expected = " or ".join(orjson.dumps(neutral).decode() for neutral in (None, *body.refused[name]))
            message = f"{place}{name}={shown(value)}: not supported here, expected {expected}"
            raise UnsupportedValue(message, param=place + name)
    for inner, part in body.parts():
        unknown += _refuse_unsupported(part, f"{place}{inner}.")
    return unknown


def _is_neutral(value: Any, neutrals: tuple[Any, ...]) -> bool:
    # In Python True == 1; in JSON it is another type.
    is_bool = isinstance(value, bool)
    return value is None or any(value == each and is_bool == isinstance(each, bool) for each in neutrals)


def _error_from_validation(exc: ValidationError, status: int) -> APIError:
    errors = exc.errors(include_url=False)
    first = next((error for error in errors if error["type"] == "unsupported_value"), errors[0])
    if first["type"] == "broken_rule":
        param = _place((*first["loc"], *filter(None, [first["ctx"]["param"]])))
        return InvalidRequest(f"{param}: {first['msg']}", param=param)
    param = _place(first["loc"])
    has_value = first["type"] != "missing"
    message = f"{param}={shown(first['input'])}: {first['msg']}" if has_value else f"{param}: {first['msg']}"
    if first["type"] == "unsupported_value":
        return UnsupportedValue(message, param=param)
    details = [
        {"loc": ["body", *error["loc"]], "msg": error["msg"], "type": error["type"]} for error in errors[:MAX_DETAILS]
    ]
    return ValidationFailed(message, param=param, code=_code(first["type"]), details=details, status=status)


def _place(loc: tuple[int | str, ...]) -> str:
    """Return a location as one reads it: messages[0].content. Of a key that is wrong, pydantic says so by [key]."""
    steps = [step for step in loc if step != "[key]"]
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


def _code(error_type: str) -> str:
    if error_type == "missing":
        return "missing_required_parameter"
    return "invalid_type" if error_type.endswith("_type") else "invalid_value"
