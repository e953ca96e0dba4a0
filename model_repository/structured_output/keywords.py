"""The keywords of a JSON schema without schemas inside: each is rewritten for llguidance, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from model_repository.notations import listed
from model_repository.structured_output.refusal import checked_list, checked_names, checked_object, decline, refuse

MAX_MULTIPLE = 10_000  # the digits of multipleOf as a number: the automaton has that many states
MAX_EXACT = 2**53  # llguidance computes with doubles
MAX_MINIMUM = 10_000  # largest minLength, minItems and minProperties
MAX_COUNT = 1_000_000_000

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
NOT_ENFORCED = "this keyword is not enforced; leave it out"

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_MONTH_AND_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"(?:{_YEAR}-{_MONTH_AND_DAY}|{_LEAP_YEAR}-02-29)"
_TIME = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,30}"

# llguidance accepts values that others refuse: 29 February of any year, leap seconds, hosts of any length.
_PATTERN_OF_FORMAT = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "hostname": f"^{_LABEL}(?:[.]{_LABEL}){{0,3}}$",
    "email": f"^[A-Za-z0-9_+-]{{1,20}}(?:[.][A-Za-z0-9_+-]{{1,20}}){{0,2}}@(?:{_LABEL}[.]){{1,3}}[A-Za-z]{{2,24}}$",
}
_FORMATS_OF_LLGUIDANCE = ("duration", "ipv4", "ipv6", "uri", "uuid")
_FORMATS = sorted([*_PATTERN_OF_FORMAT, *_FORMATS_OF_LLGUIDANCE])
# The other ones of JSON Schema.
_NOT_ENFORCED_FORMATS = ["idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex"]
_NOT_ENFORCED_FORMATS += ["relative-json-pointer", "uri-reference", "uri-template"]
_FORMATS_OF_ANY_TEXT = ("binary", "password", "path")  # OpenAPI's and pydantic's


@dataclass(frozen=True, slots=True)
class Keyword:
    """One keyword of a schema."""

    name: str
    value: Any
    path: str  # its name in messages
    schema: Mapping[str, Any]  # its schema, as the client wrote it
    is_open: bool  # its schema is combined with another one

    def path_of(self, name: str) -> str:
        """Return the path of another keyword of its schema."""
        return self.path.removesuffix(self.name) + name


def _number(keyword: Keyword) -> dict[str, Any]:
    value, is_upper = keyword.value, keyword.name.lower().endswith("maximum")
    if (
        _is_of_integers(keyword.schema)
        and isinstance(value, int | float)
        and (value if is_upper else -value) > MAX_EXACT
    ):
        value = MAX_EXACT if is_upper else -MAX_EXACT  # as of 64 bits: narrower, and of at most 16 digits
    _check_number(value, keyword.path)
    return {keyword.name: value}


def _is_of_integers(schema: Mapping[str, Any]) -> bool:
    types = listed(schema.get("type"))
    return "integer" in types and "number" not in types


def _exclusive(keyword: Keyword) -> dict[str, Any]:
    if not isinstance(keyword.value, bool):
        return _number(keyword)
    inclusive = keyword.name.removeprefix("exclusive").lower()  # that keyword had the number until 2016
    if keyword.value and inclusive not in keyword.schema:
        decline(f"{keyword.path}: true is enforced only beside {inclusive}")
    value = keyword.schema.get(inclusive)
    return _number(replace(keyword, value=value, path=keyword.path_of(inclusive))) if keyword.value else {}


def _check_number(value: object, path: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(f"{path}: must be a number")
    if not -MAX_EXACT <= value <= MAX_EXACT:
        decline(f"{path}: {str(value)[:40]}: numbers beyond 2 to the 53 are not enforced")


def _multiple(keyword: Keyword) -> dict[str, Any]:
    value, path = keyword.value, keyword.path
    _check_number(value, path)
    if value <= 0:
        refuse(f"{path}: must be greater than 0")
    if keyword.is_open:  # the least common multiple may be too large
        decline(f"{path}: not enforced beside allOf, anyOf, oneOf or $ref")
    digits, _, exponent = repr(value).partition("e")
    if int(digits.replace(".", "")) > MAX_MULTIPLE or (exponent and abs(int(exponent)) > 20):
        decline(f"{path}: {value}: more digits than {MAX_MULTIPLE} has are not enforced")
    return {"multipleOf": value}


def _count(keyword: Keyword) -> dict[str, Any]:
    value, path = keyword.value, keyword.path
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        refuse(f"{path}: must be an integer, 0 or greater")
    if value > (MAX_MINIMUM if keyword.name.startswith("min") else MAX_COUNT):
        decline(f"{path}: {str(value)[:40]}: larger numbers are not enforced")
    return {keyword.name: value}


def _num_properties(keyword: Keyword) -> dict[str, Any]:
    value, schema, required = keyword.value, keyword.schema, required_names(keyword)
    _count(keyword)
    if keyword.name == "minProperties":
        if value > max(1, len(required)):
            decline(f"{keyword.path}: {value}: enforced only as 0, 1 or the number of required properties")
        if required or not value:
            return {}
    names = {*checked_object(schema.get("properties", {}), keyword.path_of("properties")), *required}
    has_others = "patternProperties" in schema or schema.get("additionalProperties", False) is not False
    is_closed = not (keyword.is_open or has_others)
    if len(names) > len(required) and not (is_closed and value == len(required) + 1):  # llguidance's special case
        decline(f"{keyword.path}: {value}: not enforced beside optional properties")
    return {keyword.name: value}


def _type(keyword: Keyword) -> dict[str, Any]:
    value, path = keyword.value, keyword.path
    types = value if isinstance(value, list) else [value]
    for item in types:
        if item not in TYPES:
            refuse(f"{path}: {str(item)[:40]}: must be one of {', '.join(TYPES)}")
    if not types:
        refuse(f"{path}: must not be empty")
    if keyword.schema.get("nullable") is True:  # OpenAPI's
        types = [*types, "null"]
    return {"type": list(dict.fromkeys(types)) if len(types) > 1 else types[0]}


def _format(keyword: Keyword) -> dict[str, Any]:
    value = keyword.value
    if not isinstance(value, str) or value not in _FORMATS:
        decline(f"{keyword.path}: {str(value)[:40]}: enforced are {', '.join(_FORMATS)}")
    return {"format": value} if value in _FORMATS_OF_LLGUIDANCE else {"pattern": _PATTERN_OF_FORMAT[value]}


def is_format_a_name(schema: Mapping[str, Any]) -> bool:
    """Return whether the format of a schema adds no rule: any text has it, or it only names a pattern, as zod's do."""
    value, all_of = schema.get("format"), schema.get("allOf")
    parts = [schema, *(all_of if isinstance(all_of, list) else [])]
    has_pattern = any(isinstance(part, dict) and "pattern" in part for part in parts)
    return value in _FORMATS_OF_ANY_TEXT or (has_pattern and value not in (*_FORMATS, *_NOT_ENFORCED_FORMATS))


def _required(keyword: Keyword) -> dict[str, Any]:
    if isinstance(keyword.value, bool):  # the first drafts have it in a property
        decline(f"{keyword.path}: {NOT_ENFORCED}; list the name in the object's own required")
    return {"required": required_names(keyword)}


def required_names(keyword: Keyword) -> list[str]:
    """Return the names that the keyword's schema requires."""
    names = keyword.schema.get("required", [])
    return [] if isinstance(names, bool) else checked_names(names, keyword.path_of("required"))


def _enum(keyword: Keyword) -> dict[str, Any]:
    for index, item in enumerate(checked_list(keyword.value, keyword.path, is_filled=True)):
        _check_constant(item, f"{keyword.path}[{index}]")
    return {"enum": keyword.value}


def _const(keyword: Keyword) -> dict[str, Any]:
    _check_constant(keyword.value, keyword.path)
    return {"const": keyword.value}


def _check_constant(value: Any, path: str) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        _check_number(value, path)
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_constant(child, path)


# Never enforced, but harmless with one value.


def _property_names(keyword: Keyword) -> dict[str, Any]:
    if keyword.value is not True and keyword.value != {"type": "string"}:
        decline(f"{keyword.path}: {NOT_ENFORCED}")
    return {}


def _false(keyword: Keyword) -> dict[str, Any]:
    if keyword.value is not False:
        decline(f"{keyword.path}: {NOT_ENFORCED}")
    return {}


# Each function returns the equivalent keywords for llguidance.
PLAIN_KEYWORDS: Mapping[str, Callable[[Keyword], dict[str, Any]]] = {
    "const": _const,
    "enum": _enum,
    "exclusiveMaximum": _exclusive,
    "exclusiveMinimum": _exclusive,
    "format": _format,
    "maxItems": _count,
    "maxLength": _count,
    "maxProperties": _num_properties,
    "maximum": _number,
    "minItems": _count,
    "minLength": _count,
    "minProperties": _num_properties,
    "minimum": _number,
    "multipleOf": _multiple,
    "propertyNames": _property_names,
    "required": _required,
    "type": _type,
    "uniqueItems": _false,
}
