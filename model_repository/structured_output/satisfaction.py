"""The values that satisfy a JSON schema: whether there are any, and whether one value can satisfy two schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from model_repository.structured_output.keywords import TYPES
from model_repository.structured_output.refusal import decline

MAX_STEPS = 200_000  # comparisons of schemas; ten constants or required names count as one: about 1 s
MAX_NESTING = 4  # the depth of choices and properties in a proof

_NAME_OF_TYPE = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


class DisjointProof:
    """Proves that no value satisfies two schemas.

    The schemas are parts of one well-formed schema, which outlives this object: results are cached by id.

    Args:
        resolve: returns the schema that a reference names.
        keywords: returns the enforced keywords of a schema.
        path: the whole schema's name in messages.
    """

    def __init__(
        self,
        resolve: Callable[[str], Any],
        keywords: Callable[[Mapping[str, Any]], Mapping[str, Any]],
        path: str,
        max_steps: int,
    ) -> None:
        self._resolve = resolve
        self._keywords = keywords
        self._path = path
        self._max_steps = max_steps
        self.num_steps = 0  # so far
        self._parts: dict[int, list[Any]] = {}  # id of a schema to the schemas that it combines
        self._constants: dict[int, frozenset[str] | None] = {}  # id of a schema to its listed values

    def succeeds(self, one: object, other: object, nesting: int = MAX_NESTING) -> bool:
        """Return whether certainly no value satisfies both.

        Raises:
            Unsupported: there is too much to compare.
        """
        if nesting == 0:
            return False
        ones, others = self._conjuncts(one), self._conjuncts(other)
        both = [*ones, *others]
        if any(part is False for part in both):
            return True
        constants = [values for part in both if (values := self._constants_of(part)) is not None]
        self._count(1 + len(both) + sum(map(len, constants)) // 10)
        types = {*TYPES}.intersection(*map(types_of, both))
        return (
            not types
            or (bool(constants) and not frozenset.intersection(*constants))
            or self._differ_in_choice(ones, other, nesting)
            or self._differ_in_choice(others, one, nesting)
            or (types == {"object"} and self._differ_in_property(ones, others, nesting))
        )

    def _count(self, num_steps: int) -> None:
        self.num_steps += num_steps
        if self.num_steps > self._max_steps:
            decline(f"{self._path}: its oneOf are too many to be told apart; use anyOf")

    def _conjuncts(self, schema: Any) -> list[Any]:
        """Return the schemas that must all hold, with references resolved; of boolean schemas only False."""
        if id(schema) not in self._parts:
            found: dict[int, Any] = {}
            waiting = [schema]
            while waiting:
                part = waiting.pop()
                if part is True or id(part) in found:
                    continue
                found[id(part)] = keywords = part if part is False else self._keywords(part)
                if keywords is not False:
                    waiting += keywords.get("allOf", [])
                    waiting += [self._resolve(keywords["$ref"])] if "$ref" in keywords else []
            self._parts[id(schema)] = [*found.values()]
        return self._parts[id(schema)]

    def _constants_of(self, schema: Mapping[str, Any]) -> frozenset[str] | None:
        if id(schema) not in self._constants:
            values = _values(schema)
            self._constants[id(schema)] = None if values is None else frozenset(map(_canonical, values))
        return self._constants[id(schema)]

    def _differ_in_choice(self, parts: Sequence[Any], other: object, nesting: int) -> bool:
        choices = [part[key] for part in parts for key in ("anyOf", "oneOf") if key in part]
        return any(all(self.succeeds(option, other, nesting - 1) for option in options) for options in choices)

    def _differ_in_property(self, ones: Sequence[Any], others: Sequence[Any], nesting: int) -> bool:
        both = [*ones, *others]
        names = {name for part in both for name in part.get("required", [])}
        self._count(len(names) * len(both) // 10)
        if any(_is_closed(part) and names - part.get("properties", {}).keys() for part in both):
            return True
        mine, theirs = _properties(ones, names), _properties(others, names)
        return any(
            self.succeeds(a, b, nesting - 1)
            for name in sorted(mine.keys() & theirs.keys())
            for a in mine[name]
            for b in theirs[name]
        )


def is_finite(schema: Any, finite: Set[str]) -> bool:
    """Return whether a finite value satisfies a rewritten schema. `finite` are definitions that certainly have one."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema and schema["$ref"].rpartition("/")[2] not in finite:
        return False
    if not all(is_finite(item, finite) for item in schema.get("allOf", [])):
        return False
    if "anyOf" in schema and not any(is_finite(item, finite) for item in schema["anyOf"]):
        return False
    if "const" in schema or "enum" in schema or types_of(schema) - {"array", "object"}:
        return True
    properties, prefix = schema.get("properties", {}), schema.get("prefixItems", [])
    least = schema.get("minItems", 0)
    items = [*prefix[:least], *([schema.get("items", True)] if least > len(prefix) else [])]
    children = {"object": [properties.get(name, True) for name in schema.get("required", [])], "array": items}
    return any(all(is_finite(child, finite) for child in children[name]) for name in types_of(schema))


def types_of(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that a schema's own keywords allow. Integers count as numbers."""
    types = schema.get("type", TYPES)
    allowed = {"number" if name == "integer" else name for name in ([types] if isinstance(types, str) else types)}
    values = _values(schema)
    return allowed if values is None else allowed & {_NAME_OF_TYPE[type(value)] for value in values}


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _canonical(value: Any) -> str:
    """Return a text that is the same for equal JSON values: 1 equals 1.0, but not true."""
    if isinstance(value, dict):
        return json.dumps(sorted((key, _canonical(item)) for key, item in value.items()))
    if isinstance(value, list):
        return json.dumps([_canonical(item) for item in value])
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def _is_closed(schema: Mapping[str, Any]) -> bool:
    return schema.get("additionalProperties") is False and "patternProperties" not in schema


def _properties(parts: Sequence[Mapping[str, Any]], names: Set[str]) -> dict[str, list[Any]]:
    """Return the schemas of each named property."""
    found: dict[str, list[Any]] = {}
    for part in parts:
        for name in names & part.get("properties", {}).keys():
            found.setdefault(name, []).append(part["properties"][name])
    return found
