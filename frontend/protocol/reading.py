"""From the bytes of a body to a checked request, or to an error that names field, value and rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
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
from frontend.protocol.fields import OF_PEERS
from frontend.settings import Settings

MAX_VALUES = 2**20  # in a body: room for a prompt of a million token ids
MAX_NAMES = 20_000  # of members of objects; lists and objects may be as many


def json_object(body: bytes | bytearray, max_depth: int) -> dict[str, Any]:
    """Parse a body. Lone surrogates, NaN, Infinity and bottomless nesting are no JSON here.

    Raises:
        InvalidJSON: it is not a JSON object in UTF-8.
    """
    _refuse_too_many_values(body, max_depth)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidJSON(f"The body is not valid JSON in UTF-8: {exc}") from exc
    if not isinstance(value, dict):
        raise InvalidJSON(f"The body must be a JSON object, not {shown(value)}")
    return value


def _refuse_too_many_values(body: bytes | bytearray, max_depth: int) -> None:
    """Bound what a body holds, before anything is built of it: each value costs memory and checks later.

    Raises:
        InvalidJSON: values, names, lists or objects are too many, or nested too deep.
    """
    num_brackets, num_separators = body.count(b"{") + body.count(b"["), body.count(b":") + body.count(b",")
    if num_brackets <= max_depth and num_separators <= MAX_NAMES:
        return  # even if all of them stand outside of texts
    if b"\\" in body:  # only escaped quotes and backslashes matter here
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    characters = np.frombuffer(body, np.uint8)
    characters = characters[np.bitwise_xor.accumulate((characters == ord('"')).view(np.uint8)) == 0]  # not in texts
    is_opening = (characters == ord("{")) | (characters == ord("["))
    is_closing = (characters == ord("}")) | (characters == ord("]"))
    found = {
        "values": (np.count_nonzero(characters == ord(",")), MAX_VALUES),
        "names": (np.count_nonzero(characters == ord(":")), MAX_NAMES),
        "lists and objects": (np.count_nonzero(is_opening), MAX_NAMES),
        "levels of nesting": (_depth(is_opening[is_opening | is_closing]), max_depth),
    }
    for what, (number, limit) in found.items():
        if number > limit:
            raise InvalidJSON(f"The body has {number} {what}: at most {limit} are read")


def _depth(is_opening: npt.NDArray[np.bool_]) -> int:
    """Return how many brackets are open at a time at most."""
    return int(np.cumsum(np.where(is_opening, np.int8(1), np.int8(-1)), dtype=np.int32).max(initial=0))


def parse[Request: Body](
    model: type[Request], body: bytes | bytearray, settings: Settings
) -> tuple[Request, list[str]]:
    """Read a body; return it with the places of the fields in it that the server ignores.

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
    return request, _ignored(request)


def _ignored(body: Body, place: str = "") -> list[str]:
    """Return the places of ignored fields in this object and in the objects inside it.

    These are unknown fields, hints that no model follows, and the keywords of JSON schemas that are not enforced.

    Raises:
        UnsupportedValue: a known field that is not served would change the answer.
    """
    ignored = []
    for name, value in (body.model_extra or {}).items():
        known = {**body.refused, **body.hints}
        if name not in known or (name in body.hints and not _is_neutral(value, known[name])):
            ignored.append(place + name)
        elif not _is_neutral(value, known[name]):
            expected = " or ".join(orjson.dumps(neutral).decode() for neutral in (None, *body.refused[name]))
            hint = f"; use {OF_PEERS[name][0]}" if name in OF_PEERS else ""
            message = f"{place}{name}={shown(value)}: not supported here, expected {expected}{hint}"
            raise UnsupportedValue(message, param=place + name)
    ignored += [place + keyword for keyword in body.ignored_keywords()]
    for inner, part in body.parts():
        ignored += _ignored(part, f"{place}{inner}.")
    return ignored


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
