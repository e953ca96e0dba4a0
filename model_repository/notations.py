"""How calls write arguments that are not a JSON object: for the grammar, and for the parser that makes JSON of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

NAME = r"[\w.$@/-]{1,256}"  # of a tool or a key: both stand without quotes
PYTHON_WORDS = {"true": "True", "false": "False", "null": "None"}
ALL_TYPES = frozenset(("null", "boolean", "number", "string", "array", "object"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Notation:
    """The parts around keys and values.

    Without `quote` a text stands as it is, up to `after_value`. With the mark `"` it is a JSON string, and with any
    other one it stands between two such marks as it is, at any depth: objects and arrays then have this notation, too,
    with braces and brackets around. Otherwise they are JSON, as are numbers always.
    """

    before_key: str = ""
    after_key: str
    after_key_of_other: str = ""  # before a value that is not a text; empty: `after_key`
    after_value: str = ""
    between: str = ""
    quote: str = ""
    has_python_words: bool = False  # True, False and None

    @property
    def words(self) -> Mapping[str, str]:
        """JSON's words that this notation writes otherwise, with its own ones."""
        return PYTHON_WORDS if self.has_python_words else {}

    @property
    def is_nested(self) -> bool:
        """Whether objects and arrays have this notation at any depth."""
        return self.quote not in ("", '"')

    @property
    def own_types(self) -> frozenset[str]:
        """The types of values that this notation does not write as JSON."""
        types = {"string"} if self.quote != '"' else set()
        types |= {"boolean", "null"} if self.has_python_words else set()
        return frozenset(types | ({"array", "object"} if self.is_nested else set()))

    @property
    def text_end(self) -> str:
        """What ends a text; line breaks may follow."""
        return self.quote or self.after_value.rstrip("\n")

    def text(self, arguments: str) -> str:
        """Write arguments, a JSON object; other text, as of a call that was cut, stays as it is."""
        try:
            values = json.loads(arguments)
        except ValueError:
            return arguments
        return self._pairs(values) if isinstance(values, dict) else arguments

    def _pairs(self, values: Mapping[str, Any]) -> str:
        return self.between.join(f"{self.key(key, value)}{self.value(value)}" for key, value in values.items())

    def key(self, key: str, value: Any) -> str:
        """Write what precedes a value."""
        is_text = isinstance(value, str) or not self.after_key_of_other
        return f"{self.before_key}{key}{self.after_key if is_text else self.after_key_of_other}"

    def value(self, value: Any) -> str:
        """Write a value with its end."""
        return f"{self._value(value)}{self.after_value}"

    def _value(self, value: Any) -> str:
        if isinstance(value, str) and self.quote != '"':
            return f"{self.quote}{value}{self.quote}"
        if isinstance(value, dict) and self.is_nested:
            return f"{{{self._pairs(value)}}}"
        if isinstance(value, list) and self.is_nested:
            return f"[{self.between.join(map(self._value, value))}]"
        written = json.dumps(value, ensure_ascii=False)
        return self.words.get(written, written)


def json_types(schema: object, root: object) -> frozenset[str]:
    """Return the types of values that a JSON schema may allow; an integer is a number. `root` has the definitions.

    A malformed keyword counts as none.
    """
    return _Types(root).of_values(schema)


def property_types(schema: object, key: str) -> frozenset[str]:
    """Return the types of values that the JSON schema of an object may allow for a key."""
    found = _Types(schema).of_property(schema, key)
    return ALL_TYPES if found is None else found


class _Types:
    """Finds types; each reference is followed once, so that a small schema cannot make it long."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._of_values: dict[str, frozenset[str]] = {}  # by reference; one that is being followed adds nothing
        self._of_property: dict[str, frozenset[str] | None] = {}

    def of_values(self, schema: object) -> frozenset[str]:
        if not isinstance(schema, Mapping):
            return ALL_TYPES
        types = ALL_TYPES
        if (reference := schema.get("$ref")) is not None:
            types &= self._of_referenced(str(reference))
        if named := listed(schema.get("type")):
            of_keyword = {"number" if each == "integer" else str(each) for each in named}
            of_keyword |= {"null"} if schema.get("nullable") is True else set()  # OpenAPI's
            types &= of_keyword
        if values := listed(schema.get("enum", [schema["const"]] if "const" in schema else None)):
            types &= {json_type(value) for value in values}
        for name in ("anyOf", "oneOf"):
            if options := listed(schema.get(name)):
                types &= frozenset().union(*map(self.of_values, options))
        for each in listed(schema.get("allOf")):
            types &= self.of_values(each)
        return types

    def of_property(self, schema: object, key: str) -> frozenset[str] | None:
        """Return the types for a key; None: the schema does not say."""
        if not isinstance(schema, Mapping):
            return None
        found: list[frozenset[str] | None] = []
        properties, additional = schema.get("properties"), schema.get("additionalProperties")
        if isinstance(properties, Mapping) and key in properties:
            found.append(self.of_values(properties[key]))
        elif isinstance(additional, Mapping):
            found.append(self.of_values(additional))
        if (reference := schema.get("$ref")) is not None:
            if reference not in self._of_property:
                self._of_property[reference] = None
                self._of_property[reference] = self.of_property(referenced(reference, self._root), key)
            found.append(self._of_property[reference])
        found += [self.of_property(part, key) for part in listed(schema.get("allOf"))]
        for name in ("anyOf", "oneOf"):
            options = _known(self.of_property(each, key) for each in listed(schema.get(name)))
            found.append(frozenset().union(*options) if options else None)
        known = _known(found)
        return frozenset.intersection(*known) if known else None

    def _of_referenced(self, reference: str) -> frozenset[str]:
        if reference not in self._of_values:
            self._of_values[reference] = frozenset()
            self._of_values[reference] = self.of_values(referenced(reference, self._root))
        return self._of_values[reference]


def _known(types: Iterable[frozenset[str] | None]) -> list[frozenset[str]]:
    return [each for each in types if each is not None]


def referenced(reference: object, root: object) -> object:
    """Return what a reference inside its document names; None if there is nothing."""
    found = root
    for name in steps_of(str(reference)):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def steps_of(reference: str) -> tuple[str, ...]:
    """Return the names on a reference's path from the root."""
    return tuple(unquote(name).replace("~1", "/").replace("~0", "~") for name in reference.split("/")[1:])


def listed(value: object) -> list[Any]:
    """Return a keyword's list; a single name is one of one name, and anything else is empty."""
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def json_type(value: object) -> str:
    """Return the type of a JSON value."""
    kinds = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")
