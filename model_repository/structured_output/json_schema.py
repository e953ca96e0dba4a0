"""JSON schemas in the words that llguidance enforces."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from model_repository.contract.request import MAX_IGNORED_PLACES, MAX_PLACE_CHARS
from model_repository.errors import Unsupported
from model_repository.notations import NAME, Notation
from model_repository.structured_output.keywords import (
    NOT_ENFORCED,
    PLAIN_KEYWORDS,
    Keyword,
    is_format_a_name,
    required_names,
)
from model_repository.structured_output.pattern import search_pattern
from model_repository.structured_output.references import References
from model_repository.structured_output.refusal import (
    check_depth,
    checked_list,
    checked_object,
    decline,
    refuse,
)
from model_repository.structured_output.satisfaction import MAX_STEPS, DisjointProof, is_finite

MAX_ONE_OF = 100
MAX_STEPS_TO_LIST = 10_000  # of the oneOf proofs of one request where a failure only lists the keyword: about 40 ms
MAX_OPTIONAL_PROPERTIES = 240  # one object's; see LIMITS

# Separators as json.dumps writes them: with free white space, a weak model writes it without end.
JSON_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Beside listed names, llguidance 1.9 allows other ones in any notation: "\u0061" would escape the schema of "a".
# Without \u, control characters that have no short escape, such as ESC, cannot be written.
_ONE_NOTATION_LAYOUT = {**JSON_LAYOUT, "json_allowed_escapes": 'nrbtf\\"'}

# JSON Schema's and OpenAPI's; `nullable` is read with `type`, `$id` before all else.
_ANNOTATIONS = frozenset(
    {"$schema", "$comment", "$anchor", "$defs", "definitions", "title", "description", "default", "example", "examples"}
    | {"deprecated", "readOnly", "writeOnly", "contentMediaType", "contentEncoding", "contentSchema", "discriminator"}
    | {"externalDocs", "xml", "nullable", "$id", "$dynamicAnchor", "$recursiveAnchor", "$vocabulary"}
)
# Constraints of JSON Schema, of any draft, that are never enforced.
_NOT_ENFORCED = frozenset(
    {"not", "if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired", "dependentSchemas"}
    | {"dependencies", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef", "extends"}
    | {"disallow", "divisibleBy"}
)
_COMBINING = ("$ref", "allOf", "anyOf", "oneOf")
_COMBINED = re.compile(r"(?:\.(?:allOf|anyOf|oneOf)\[[0-9]+\])*\Z")
_OF_JSON_ONLY = frozenset(("patternProperties", "minProperties", "maxProperties"))


class IgnoredKeywords:
    """The keywords without effect in the schemas of one request.

    Unknown keywords are among them: JSON Schema treats them as annotations, but they may be typing errors.
    """

    def __init__(self) -> None:
        self.num_steps_left = MAX_STEPS_TO_LIST
        self._places: dict[str, None] = {}

    @property
    def places(self) -> tuple[str, ...]:
        """Their paths, each once, cut to MAX_PLACE_CHARS. One more than MAX_IGNORED_PLACES stands for all others."""
        return tuple(self._places)

    def add(self, path: str) -> None:
        if len(self._places) <= MAX_IGNORED_PLACES:
            self._places[path[:MAX_PLACE_CHARS]] = None


def enforceable_schema(
    schema: object,
    path: str = "schema",
    is_strict: bool = True,
    ignored: IgnoredKeywords | None = None,
    notation: Notation | None = None,
) -> dict[str, Any]:
    """Return a JSON schema in the words that llguidance enforces, also for `%json` in a Lark grammar.

    Args:
        path: its name in messages.
        is_strict: enforce every constraint; otherwise the result may allow more.
        ignored: gets the keywords that are not enforced.
        notation: of the value; None: JSON.

    Raises:
        InvalidRequest: the schema is malformed or too large, or no value satisfies it.
        Unsupported: it is strict, and a part of it cannot be enforced.
    """
    ignored = IgnoredKeywords() if ignored is None else ignored
    rewriting = _Rewriting(schema, path, ignored, notation, is_strict=is_strict)
    result = rewriting.run()
    rewriting.check_finite()
    rewriting.check_one_ofs()
    return result


class _Rewriting:
    """Rewrites one schema for llguidance: keyword by keyword, definition by definition.

    Without strictness, keywords that cannot be enforced are dropped. That only widens the schema: every enforced
    keyword allows more when a schema inside it allows more.
    """

    def __init__(
        self, root: object, path: str, ignored: IgnoredKeywords, notation: Notation | None, *, is_strict: bool
    ) -> None:
        check_depth(root, path)
        self._root = root
        self._path = path
        self._is_strict = is_strict
        self._ignored = ignored
        self._notation = notation
        self._whole = {path}  # paths of schemas of the whole value
        self._references = References(root, path)
        self._rewritten: dict[str, Any] | bool = True
        self._definitions: dict[str, dict[str, Any] | bool] = {}
        self._results: dict[tuple[int, bool], dict[str, Any] | bool] = {}  # by id() of their schema, and openness
        self._enforced: dict[int, dict[str, Any]] = {}  # enforced keywords as written, by id() of their schema
        self._one_ofs: dict[str, list[Any]] = {}  # alternatives, by path
        self._layout: dict[str, Any] = JSON_LAYOUT

    def run(self) -> dict[str, Any]:
        self._rewritten = self._schema(self._root, self._path, is_open=False)
        for name, part, path, is_open in self._references.new():
            self._definitions[name] = self._schema(part, path, is_open)
        schema = self._rewritten if isinstance(self._rewritten, dict) else ({} if self._rewritten else {"enum": []})
        return {**schema, "$defs": self._definitions, "x-guidance": self._layout}

    def check_one_ofs(self) -> None:
        """Decline each `oneOf` that may differ from the `anyOf` that replaces it."""
        proof = DisjointProof(
            lambda reference: self._references.resolve(reference, self._path)[0],
            lambda schema: self._enforced[id(schema)],
            self._path,
            MAX_STEPS if self._is_strict else self._ignored.num_steps_left,
        )
        for path, options in self._one_ofs.items():
            with self._ignoring(path):
                if len(options) > MAX_ONE_OF:
                    decline(f"{path}: at most {MAX_ONE_OF} alternatives are enforced")
                for (first, one), (second, other) in itertools.combinations(enumerate(options), 2):
                    if not proof.succeeds(one, other):
                        rule = "enforced only where a type, a const or a required property tells the alternatives apart"
                        decline(f"{path}: [{first}] and [{second}] may both match: {rule}; use anyOf")
        if not self._is_strict:
            self._ignored.num_steps_left -= proof.num_steps

    @contextlib.contextmanager
    def _ignoring(self, path: str) -> Iterator[None]:
        """Continue without a keyword that the block declines, unless the schema is strict."""
        try:
            yield
        except Unsupported:
            if self._is_strict:
                raise
            self._ignored.add(path)

    def check_finite(self) -> None:
        """Refuse a schema that only endless values satisfy: llguidance accepts it and fails during generation."""
        finite: set[str] = set()
        while added := {n for n in self._definitions if n not in finite and is_finite(self._definitions[n], finite)}:
            finite |= added
        for name, reference in self._references.by_name.items():
            if name not in finite:
                refuse(f"{reference}: refers to itself without an end")
        if not is_finite(self._rewritten, finite):
            refuse(f"{self._path}: nothing satisfies it")

    def _schema(self, schema: object, path: str, is_open: bool) -> dict[str, Any] | bool:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            refuse(f"{path}: a schema must be an object, true or false")
        key = id(schema), is_open
        if key not in self._results:  # references to a part and to what contains it would rewrite it again and again
            self._results[key] = self._object(schema, path, is_open)
        return self._results[key]

    def _object(self, schema: dict[str, Any], path: str, is_open: bool) -> dict[str, Any] | bool:
        enforced = self._enforced[id(schema)] = {}
        if "$id" in schema and schema is not self._root:  # its references do not start at our root
            with self._ignoring(f"{path}.$id"):
                decline(f"{path}.$id: a schema with a name of its own inside another one is not enforced")
            return True
        written = {key: value for key, value in schema.items() if self._is_constraint(key, schema, path)}
        is_open = is_open or _is_mixed(written, path)
        result: dict[str, Any] = {}
        more: list[dict[str, Any]] = []  # parts that need a keyword twice
        for name, value in written.items():
            keyword = Keyword(name, value, f"{path}.{name}", schema, is_open)
            with self._ignoring(keyword.path):
                part = self._keyword(keyword)
                if part.keys() & _OF_JSON_ONLY and self._is_noted(path):
                    decline(f"{keyword.path}: not enforced in this model's calls")
                enforced[name] = part.get(name, value) if name == "type" else value
                if part.keys() & result.keys():
                    more.append(part)
                else:
                    result.update(part)
        if more:
            result["allOf"] = [*result.get("allOf", []), *more]
        if any(name in written and name not in enforced for name in ("properties", "patternProperties")):
            # The dropped names would count as additional.
            if result.pop("additionalProperties", True) is not True:
                self._ignored.add(f"{path}.additionalProperties")
            enforced.pop("additionalProperties", None)
        elif not is_open:
            _close(result)
        listed = result.keys() & {"properties", "patternProperties"}
        if len(listed) == 2 or (listed and result.get("additionalProperties") is not False):
            self._layout = _ONE_NOTATION_LAYOUT
        return result

    def _is_constraint(self, name: str, schema: Mapping[str, Any], path: str) -> bool:
        is_name = name == "format" and is_format_a_name(schema)
        if not is_name and (name in PLAIN_KEYWORDS or name in _KEYWORDS or name in _NOT_ENFORCED):
            return True
        if name not in _ANNOTATIONS and not name.startswith("x-"):
            self._ignored.add(f"{path}.{name}")
        return False

    def _keyword(self, keyword: Keyword) -> dict[str, Any]:
        if plain := PLAIN_KEYWORDS.get(keyword.name):
            return plain(keyword)
        if rewrite := _KEYWORDS.get(keyword.name):
            return rewrite(self, keyword)
        decline(f"{keyword.path}: {NOT_ENFORCED}")

    def _is_noted(self, path: str) -> bool:
        """Whether the objects of a schema have the notation. In some, those inside of the value are JSON."""
        if self._notation is None or self._notation.is_nested:
            return self._notation is not None
        return _COMBINED.sub("", path) in self._whole

    def reference(self, keyword: Keyword) -> dict[str, Any]:
        if self._is_noted(owner := keyword.path.removesuffix(".$ref")) and isinstance(keyword.value, str):
            self._whole.add(self._references.resolve(keyword.value, owner)[1])
        return {"$ref": f"#/$defs/{self._references.add(keyword.value, keyword.path, keyword.is_open)}"}

    def schema(self, keyword: Keyword) -> dict[str, Any]:
        return {keyword.name: self._schema(keyword.value, keyword.path, keyword.is_open)}

    def schemas(self, keyword: Keyword) -> dict[str, Any]:
        path, schemas = keyword.path, checked_list(keyword.value, keyword.path, is_filled=True)
        return {keyword.name: [self._schema(item, f"{path}[{i}]", keyword.is_open) for i, item in enumerate(schemas)]}

    def one_of(self, keyword: Keyword) -> dict[str, Any]:
        rewritten = {"anyOf": self.schemas(keyword)["oneOf"]}
        self._one_ofs[keyword.path] = keyword.value
        return rewritten

    def items(self, keyword: Keyword) -> dict[str, Any]:
        if isinstance(keyword.value, list):  # the name of prefixItems before 2020
            return {"prefixItems": self.schemas(keyword)["items"]}
        return self.schema(keyword)

    def additional_items(self, keyword: Keyword) -> dict[str, Any]:
        if not isinstance(keyword.schema.get("items"), list):  # then it has no meaning
            return {}
        return {"items": self.schema(keyword)["additionalItems"]}

    def properties(self, keyword: Keyword) -> dict[str, Any]:
        path, properties = keyword.path, checked_object(keyword.value, keyword.path)
        if len(properties) - len(required_names(keyword)) > MAX_OPTIONAL_PROPERTIES:
            decline(f"{path}: more than {MAX_OPTIONAL_PROPERTIES} optional properties are not enforced; require some")
        if self._is_noted(path.removesuffix(".properties")):
            properties = {name: item for name, item in properties.items() if self._is_writable(name, keyword)}
        return {
            "properties": {
                name: self._schema(item, f"{path}.{name}", keyword.is_open) for name, item in properties.items()
            }
        }

    def _is_writable(self, name: str, keyword: Keyword) -> bool:
        if re.fullmatch(NAME, name) or name in required_names(keyword):  # the grammar refuses a required one
            return True
        with self._ignoring(path := f"{keyword.path}.{name}"):
            decline(f"{path}: keys in this model's calls have letters, digits and _ . $ @ / - only")
        return False

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
        return f"^{search_pattern(value, path)}$"


# The keywords with schemas inside, and those that are checked after all schemas are known.
_KEYWORDS: Mapping[str, Callable[[_Rewriting, Keyword], dict[str, Any]]] = {
    "$ref": _Rewriting.reference,
    "additionalItems": _Rewriting.additional_items,
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


def _is_mixed(schema: Mapping[str, Any], path: str) -> bool:
    """Return whether a schema combines others, with each other or with its own keywords."""
    combining = [key for key in _COMBINING if key in schema]
    return bool(combining) and (
        len(combining) > 1
        or not {*schema} <= {*combining, "type", *_NOT_ENFORCED}
        or ("allOf" in schema and len(checked_list(schema["allOf"], f"{path}.allOf")) > 1)
    )


def _close(schema: dict[str, Any]) -> None:
    """Forbid further properties, if the schema names some and does not decide about others."""
    if "properties" not in schema or "additionalProperties" in schema:
        return
    required = schema.get("required", [])
    if "patternProperties" in schema and not {*required} <= schema["properties"].keys():
        return
    schema["properties"] = {**schema["properties"], **{n: True for n in required if n not in schema["properties"]}}
    schema["additionalProperties"] = False
