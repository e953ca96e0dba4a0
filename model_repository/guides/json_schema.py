"""JSON schemas in the words that llguidance enforces."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

from model_repository.guides.compilation import grammar_error
from model_repository.guides.keywords import NOT_ENFORCED, PLAIN_KEYWORDS, Keyword
from model_repository.guides.pattern import rust_pattern
from model_repository.guides.references import References
from model_repository.guides.refusal import (
    check_depth,
    checked_list,
    checked_name,
    checked_object,
    decline,
    refuse,
)
from model_repository.guides.satisfaction import DisjointProof, is_finite

MAX_ONE_OF = 100
MAX_OPTIONAL_PROPERTIES = 240  # of one object; see LIMITS

# Compact as json.dumps writes it: were white space free, a weak model would run on in it.
JSON_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

_ANNOTATIONS = frozenset(
    {"$schema", "$comment", "$anchor", "$defs", "definitions", "title", "description", "default", "example", "examples"}
    | {"deprecated", "readOnly", "writeOnly", "contentMediaType", "contentEncoding", "contentSchema", "discriminator"}
    | {"externalDocs", "xml"}
)
_COMBINING = ("$ref", "allOf", "anyOf", "oneOf")


def schema_grammar(schema: Mapping[str, Any]) -> str:
    """Return the grammar of the JSON that satisfies a schema, one in llguidance's words."""
    return f"start: %json {json.dumps({**schema, 'x-guidance': JSON_LAYOUT})}"


def enforceable_schema(schema: object, path: str = "schema") -> dict[str, Any]:
    """Return a JSON schema in the words that llguidance enforces, fit for `%json` in a Lark grammar too.

    Args:
        schema: as parsed from JSON.
        path: what messages call it.

    Raises:
        InvalidRequest: the schema is malformed or too large.
        Unsupported: a part of it cannot be enforced.
    """
    rewriting = _Rewriting(schema, path)
    result = rewriting.run()
    rewriting.check()
    return result


def rewritten_schema(schema: object, path: str = "schema") -> dict[str, Any]:
    """Return what enforceable_schema returns, for a schema that it took: nothing is compiled or proved again."""
    return _Rewriting(schema, path).run()


class _Rewriting:
    """One schema in llguidance's words: keyword by keyword, definition by definition."""

    def __init__(self, root: object, path: str) -> None:
        check_depth(root, path)
        self._root = root
        self._path = path
        self._references = References(root, path)
        self._rewritten: dict[str, Any] | bool = True
        self._definitions: dict[str, dict[str, Any] | bool] = {}
        self._patterns: list[tuple[str, str]] = []  # path and pattern
        self._one_ofs: list[tuple[str, list[Any]]] = []  # path and alternatives

    def run(self) -> dict[str, Any]:
        self._rewritten = self._schema(self._root, self._path, is_open=False)
        for name, part, path, is_open in self._references.new():
            self._definitions[name] = self._schema(part, path, is_open)
        schema = self._rewritten if isinstance(self._rewritten, dict) else ({} if self._rewritten else {"enum": []})
        return {**schema, "$defs": self._definitions, "x-guidance": JSON_LAYOUT}

    def check(self) -> None:
        """Refuse what llguidance would take, but not follow, or not name."""
        for path, pattern in self._patterns:
            if message := grammar_error(schema_grammar({"type": "string", "pattern": pattern})):
                decline(f"{path}: {message}")
        self._check_finite()
        proof = DisjointProof(lambda reference: self._references.resolve(reference, self._path)[0], self._path)
        for path, options in self._one_ofs:
            for (first, one), (second, other) in itertools.combinations(enumerate(options), 2):
                if not proof.succeeds(one, other):
                    rule = "enforced only where a type, a const or a required property tells the alternatives apart"
                    decline(f"{path}: [{first}] and [{second}] may both match: {rule}; use anyOf")

    def _check_finite(self) -> None:
        """Refuse what only an endless value satisfies: llguidance takes it and fails while it generates."""
        finite: set[str] = set()
        while added := {n for n in self._definitions if n not in finite and is_finite(self._definitions[n], finite)}:
            finite |= added
        for name, reference in self._references.of_definitions().items():
            if name not in finite:
                refuse(f"{reference}: it refers to itself without an end")
        if not is_finite(self._rewritten, finite):
            refuse(f"{self._path}: nothing satisfies it")

    def _schema(self, schema: object, path: str, is_open: bool) -> dict[str, Any] | bool:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            refuse(f"{path}: a schema must be an object, true or false")
        written = {key: value for key, value in schema.items() if not _is_annotation(key)}
        is_open = is_open or _is_mixed(written, path)
        result: dict[str, Any] = {}
        more: list[dict[str, Any]] = []  # what needs a keyword twice
        for name, value in written.items():
            part = self._keyword(Keyword(name, value, f"{path}.{name}", schema, is_open))
            if part.keys() & result.keys():
                more.append(part)
            else:
                result.update(part)
        if more:
            result["allOf"] = [*result.get("allOf", []), *more]
        if not is_open:
            _close(result)
        return result

    def _keyword(self, keyword: Keyword) -> dict[str, Any]:
        if plain := PLAIN_KEYWORDS.get(keyword.name):
            return plain(keyword)
        if rewrite := _KEYWORDS.get(keyword.name):
            return rewrite(self, keyword)
        decline(f"{keyword.path}: {NOT_ENFORCED}")

    def reference(self, keyword: Keyword) -> dict[str, Any]:
        return {"$ref": f"#/$defs/{self._references.add(keyword.value, keyword.path, keyword.is_open)}"}

    def schema(self, keyword: Keyword) -> dict[str, Any]:
        return {keyword.name: self._schema(keyword.value, keyword.path, keyword.is_open)}

    def schemas(self, keyword: Keyword) -> dict[str, Any]:
        path, schemas = keyword.path, checked_list(keyword.value, keyword.path, is_filled=True)
        return {keyword.name: [self._schema(item, f"{path}[{i}]", keyword.is_open) for i, item in enumerate(schemas)]}

    def one_of(self, keyword: Keyword) -> dict[str, Any]:
        if len(checked_list(keyword.value, keyword.path, is_filled=True)) > MAX_ONE_OF:
            decline(f"{keyword.path}: at most {MAX_ONE_OF} alternatives are enforced")
        self._one_ofs.append((keyword.path, keyword.value))
        return {"anyOf": self.schemas(keyword)["oneOf"]}

    def items(self, keyword: Keyword) -> dict[str, Any]:
        if isinstance(keyword.value, list):
            decline(f"{keyword.path}: a list is not enforced; use prefixItems")
        return self.schema(keyword)

    def properties(self, keyword: Keyword) -> dict[str, Any]:
        path, properties = keyword.path, checked_object(keyword.value, keyword.path)
        if len(properties) - len(checked_list(keyword.schema.get("required", []), path)) > MAX_OPTIONAL_PROPERTIES:
            decline(f"{path}: more than {MAX_OPTIONAL_PROPERTIES} optional properties are not enforced; require some")
        return {
            "properties": {
                checked_name(name, path): self._schema(item, f"{path}.{name}", keyword.is_open)
                for name, item in properties.items()
            }
        }

    def pattern_properties(self, keyword: Keyword) -> dict[str, Any]:
        path, properties = keyword.path, checked_object(keyword.value, keyword.path)
        return {
            "patternProperties": {
                self._pattern(name, path): self._schema(item, f"{path}.{name}", keyword.is_open)
                for name, item in properties.items()
            }
        }

    def pattern(self, keyword: Keyword) -> dict[str, Any]:
        return {"pattern": self._pattern(keyword.value, keyword.path)}

    def _pattern(self, value: object, path: str) -> str:
        if not isinstance(value, str):
            refuse(f"{path}: must be a text")
        pattern = rust_pattern(value, path)
        self._patterns.append((path, pattern))
        return pattern


# The keywords that hold schemas, or what is checked once all of them are known.
_KEYWORDS: Mapping[str, Callable[[_Rewriting, Keyword], dict[str, Any]]] = {
    "$ref": _Rewriting.reference,
    "additionalProperties": _Rewriting.schema,
    "allOf": _Rewriting.schemas,
    "anyOf": _Rewriting.schemas,
    "items": _Rewriting.items,
    "oneOf": _Rewriting.one_of,
    "pattern": _Rewriting.pattern,
    "patternProperties": _Rewriting.pattern_properties,
    "prefixItems": _Rewriting.schemas,
    "properties": _Rewriting.properties,
}


def _is_annotation(key: str) -> bool:
    return key in _ANNOTATIONS or key.startswith("x-")


def _is_mixed(schema: Mapping[str, Any], path: str) -> bool:
    """Return whether a schema combines others, with each other or with keywords of its own."""
    combining = [key for key in _COMBINING if key in schema]
    return bool(combining) and (
        len(combining) > 1
        or not {*schema} <= {*combining, "type"}
        or ("allOf" in schema and len(checked_list(schema["allOf"], f"{path}.allOf")) > 1)
    )


def _close(schema: dict[str, Any]) -> None:
    """Forbid properties beyond those of the schema, where it names any and does not say."""
    if "properties" not in schema or "additionalProperties" in schema:
        return
    required = schema.get("required", [])
    if "patternProperties" in schema and not {*required} <= schema["properties"].keys():
        return
    schema["properties"] = {**schema["properties"], **{n: True for n in required if n not in schema["properties"]}}
    schema["additionalProperties"] = False
