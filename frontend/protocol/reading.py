"""The bytes of a body to a checked request, or to an error with field, value and rule."""

from __future__ import annotations

from typing import Any

import numpy as np
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
from frontend.protocol.chat import ChatCompletionRequest
from frontend.protocol.plain_chat import plain_chat
from frontend.settings import Settings

MAX_VALUES = 2**20  # values of a body: enough for a prompt of a million token ids
MAX_JSON_DEPTH = 128  # lists and objects; the serializers of later stages have limits of their own
_MAX_SHOWN = 160  # characters of a value before its rule
MAX_NAMES = 20_000  # members of objects; also the limit of lists and objects


def json_object(body: bytes | bytearray) -> dict[str, Any]:
    """Parse a body. Lone surrogates, NaN, Infinity and deep nesting are refused.

    Raises:
        InvalidJSON: the body is not a JSON object in UTF-8.
    """
    _refuse_too_many_values(body)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidJSON(f"The body is not valid JSON in UTF-8: {exc}") from exc
    if not isinstance(value, dict):
        raise InvalidJSON(f"The body must be a JSON object, not {shown(value)}")
    return value


def _refuse_too_many_values(body: bytes | bytearray) -> None:
    """Count the values of a body before they are parsed: each one costs memory and checks.

    Raises:
        InvalidJSON: there are too many values, names, lists or objects, or they are nested too deep.
    """
    num_brackets, num_separators = body.count(b"{") + body.count(b"["), body.count(b":") + body.count(b",")
    if num_brackets <= MAX_JSON_DEPTH and num_separators <= MAX_NAMES:
        return  # few enough, even if all of them are outside of texts
    if b"\\" in body:  # only escaped quotes and backslashes matter here
        body = body.replace(rb"\\", b"").replace(rb"\"", b"")
    characters = np.frombuffer(body, np.uint8)
    characters = characters[np.bitwise_xor.accumulate((characters == ord('"')).view(np.uint8)) == 0]  # outside of texts
    is_opening = (characters == ord("{")) | (characters == ord("["))
    is_closing = (characters == ord("}")) | (characters == ord("]"))
    steps = (is_opening.astype(np.int8) - is_closing)[is_opening | is_closing]
    found = {
        "values": (np.count_nonzero(characters == ord(",")), MAX_VALUES),
        "names": (np.count_nonzero(characters == ord(":")), MAX_NAMES),
        "lists and objects": (np.count_nonzero(is_opening), MAX_NAMES),
        "levels of nesting": (int(steps.cumsum(dtype=np.int32).max(initial=0)), MAX_JSON_DEPTH),
    }
    for name, (number, limit) in found.items():
        if number > limit:
            raise InvalidJSON(f"The body has {number} {name}: at most {limit} are read")


def parse[Request: Body](
    model: type[Request], body: bytes | bytearray, settings: Settings
) -> tuple[Request, list[str]]:
    """Return the request in a body, and the places of ignored fields.

    Raises:
        APIError: the body breaks a rule; the error has field, value and rule.
    """
    if model is ChatCompletionRequest and (chat := plain_chat(body)) is not None:
        return chat, []  # type: ignore[return-value]
    value = json_object(body)
    if settings.default_model and value.get("model") is None:
        value["model"] = settings.default_model
    try:
        request = model.model_validate(value, by_alias=True, context=settings)
    except ValidationError as exc:
        raise error_from_validation(exc, settings.validation_status) from exc
    return request, _ignored(request)


def _ignored(body: Body, place: str = "") -> list[str]:
    """Return the places of ignored fields in an object and in the objects inside it.

    Ignored are unknown fields, and hints without effect. The tokenizer stage finds ignored keywords of JSON schemas.

    Raises:
        UnsupportedValue: a known field without support would change the answer.
    """
    if body.is_skipped:
        return [place.removesuffix(".")]
    ignored = []
    for name, value in (body.model_extra or {}).items():
        refused = body.refused.get(name)
        if refused is None:
            if name not in body.hints or not _is_neutral(value, body.hints[name]):
                ignored.append(place + name)
        elif not _is_neutral(value, refused.neutral):
            expected = " or ".join(orjson.dumps(neutral).decode() for neutral in (None, *refused.neutral))
            hint = f"; use {refused.instead}" if refused.instead else ""
            message = f"{place}{name}={shown(value)}: not supported here, expected {expected}{hint}"
            raise UnsupportedValue(message, param=place + name)
    ignored += [place + value for value in body.ignored_values()]
    for inner, part in body.parts():
        ignored += _ignored(part, f"{place}{inner}.")
    return ignored


def _is_neutral(value: Any, neutrals: tuple[Any, ...]) -> bool:
    # In Python True == 1; in JSON it is another type.
    is_bool = isinstance(value, bool)
    return value is None or any(value == each and is_bool == isinstance(each, bool) for each in neutrals)


def error_from_validation(exc: ValidationError, status: int = 400) -> APIError:
    """Return the error for a body that breaks its model; `status` is that of a broken schema."""
    errors = [_with_index(error) for error in exc.errors(include_url=False)]
    first = next((error for error in errors if error["type"] == "unsupported_value"), errors[0])
    if first["type"] == "broken_rule":
        param = _place((*first["loc"], *filter(None, [first["ctx"]["param"]])))
        return InvalidRequest(f"{param}: {first['msg']}", param=param)
    param = _place(first["loc"])
    has_value = first["type"] != "missing"
    rule = "must not be empty" if first["type"] == "too_short" and not first["input"] else first["msg"]
    if first["type"] == "too_long" and isinstance(first["input"], list) and isinstance(first["input"][0], dict):
        has_value = False  # the first objects of many do not show what is wrong
        if num_items := first.get("ctx", {}).get("actual_length"):
            rule = f"{num_items} items: at most {first['ctx']['max_length']} are allowed"
    message = f"{param}: {rule}"
    if has_value:
        value = shown(first["input"])
        is_long = len(value) > _MAX_SHOWN  # the rule must not stand behind the beginning of a list
        message = f"{message}, not {value[:_MAX_SHOWN]}..." if is_long else f"{param}={value}: {rule}"
    if first["type"] == "int_type" and isinstance(first["input"], float) and abs(first["input"]) >= 2**63:
        message += " of 64 bits"  # orjson reads longer ones as floats
    elif first["input"] == -1 and param in ("max_tokens", "max_completion_tokens"):  # no limit in LM Studio
        message += "; leave it out for the server's default, or send the context window for no other limit"
    if first["type"] == "unsupported_value":
        return UnsupportedValue(message, param=param)
    details = [
        {"loc": ["body", *error["loc"]], "msg": error["msg"], "type": error["type"]} for error in errors[:MAX_DETAILS]
    ]
    return ValidationFailed(message, param=param, code=_code(first["type"]), details=details, status=status)


def _with_index(error: Any) -> Any:
    """Return an error about an item of a list with the item's place and value."""
    index = error.get("ctx", {}).get("index")
    return error if index is None else {**error, "loc": (*error["loc"], index), "input": error["input"][index]}


def _place(loc: tuple[int | str, ...]) -> str:
    """Return a location such as messages[0].content. pydantic adds "[key]" for a bad key."""
    steps = [step for step in loc if step != "[key]"]
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


def _code(error_type: str) -> str:
    if error_type == "missing":
        return "missing_required_parameter"
    return "invalid_type" if error_type.endswith("_type") else "invalid_value"
