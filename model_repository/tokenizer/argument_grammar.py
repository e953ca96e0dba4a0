"""The grammar of a call's arguments that are not a JSON object."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from model_repository.errors import InvalidRequest
from model_repository.notations import NAME, Notation, json_type, json_types, listed, referenced
from model_repository.structured_output.grammar import MAX_LARK_CHARS

MAX_PARTS = 10_000  # of a tool's schema, with those that references repeat
MAX_LINKS = 500  # llguidance's parser recurses over rules that lead to each other on the native stack

_NOTHING = '""'
_ANY = "#any"  # in place of a reference: every value
_WORDS = {"boolean": ("true", "false"), "null": ("null",)}
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_DEFINITION = re.compile(r'"\$ref": "#/\$defs/([^"]+)"')
_ESCAPES = re.compile(r"\\.|[/\n]", re.DOTALL)

# Formats that `enforceable_schema` leaves to llguidance, which knows them only in JSON. Texts of these are all valid.
_HEX = "[0-9a-fA-F]"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_URI = f"(?:[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%{_HEX}{{2}})"
_FORMATS = {
    "duration": "P(?:[0-9]{1,9}[YMWD]|(?:[0-9]{1,9}D)?T[0-9]{1,9}[HMS])",
    "ipv4": rf"{_OCTET}(?:\.{_OCTET}){{3}}",
    "ipv6": f"(?:{_HEX}{{1,4}}:){{7}}{_HEX}{{1,4}}|(?:{_HEX}{{1,4}}:){{1,3}}(?::{_HEX}{{1,4}}){{1,3}}",
    "uri": f"[A-Za-z][A-Za-z0-9+.-]{{0,30}}:{_URI}+(?:#{_URI}*)?",
    "uuid": f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
}
# How two schemas of one value join in a keyword that both have; in other ones they must be equal.
_JOINED: Mapping[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("minimum", "exclusiveMinimum", "minLength", "minItems"), max),
    **dict.fromkeys(("maximum", "exclusiveMaximum", "maxLength", "maxItems"), min),
    "required": lambda one, other: list(dict.fromkeys([*one, *other])),
    "patterns": lambda one, other: one + other,
    "additionalProperties": lambda one, other: one if other is True else other,
}


class ArgumentGrammar:
    """The rules of arguments in a notation, in llguidance's dialect of Lark. Different tools share them.

    Args:
        notation: of the arguments.
    """

    def __init__(self, notation: Notation) -> None:
        self.rules: list[str] = []
        self._notation = notation
        self._names: dict[str, str] = {}  # of rules, by expression
        self._numbers = itertools.count()
        self._num_chars = 0  # of all rules
        # Of one tool:
        self._root: Mapping[str, Any] = {}
        self._place = ""
        self._definitions: dict[str, str] = {}  # names of rules, by reference
        self._waiting: list[str] = []  # references whose rules are not written
        self._referenced: dict[str, list[tuple[bool, str]]] = {}  # kinds of values, by reference
        self._num_parts = 0  # followed so far
        self._num_links = 0

    def arguments(self, schema: Mapping[str, Any], place: str) -> str:
        """Return the expression of a tool's arguments.

        Args:
            schema: JSON schema of an object, prepared by `enforceable_schema`.
            place: of the schema in the request.

        Raises:
            InvalidRequest: a part of the schema cannot be enforced in this notation.
        """
        self._root, self._place, self._definitions, self._referenced = schema, place, {}, {}
        self._num_parts = self._num_links = 0
        try:
            arguments = self._named(self._pairs(self._joined(schema)))
            while self._waiting:
                reference = self._waiting.pop()
                values = self._kinds(self._joined(self._definition_of(reference)))
                self.rules.append(f"{self._definitions[reference]}: {_either(value for _, value in values)}")
        except RecursionError:
            self._refuse("nested too deeply, with the parts that references repeat")
        return arguments

    def _pairs(self, schema: Mapping[str, Any]) -> str:
        """Return the keys and values of an object, in the order of its schema."""
        if "anyOf" in schema:
            return _either(self._pairs(self._joined(option)) for option in self._options(schema))
        for keyword in ("patternProperties", "minProperties", "maxProperties"):
            if keyword in schema:
                self._refuse(f"{keyword} is not enforced in this model's calls")
        required, named = schema.get("required", ()), schema.get("properties", {})
        properties = {**named, **{key: True for key in required if key not in named}}
        written = {key: self._pair(key, value) for key, value in properties.items()}
        for key in required:
            if not written[key]:
                self._refuse(f"{key}: no text of this model's calls satisfies it")
        pairs = [(pair, key in required) for key, pair in written.items() if pair]
        additional = schema.get("additionalProperties", True)
        more = "" if additional is False else self._other_pair(additional, properties)
        between = literal(self._notation.between)
        if not between:
            texts = [pair if is_needed else f"({pair})?" for pair, is_needed in pairs]
            return " ".join([*texts, f"({more})*" if more else ""])
        num_leading = next((number for number, (_, is_needed) in enumerate(pairs) if is_needed), len(pairs))
        after = f"({between} {more})*" if more else ""
        for pair, is_needed in reversed(pairs[num_leading + 1 :]):
            after = f"{between} {pair} {after}" if is_needed else f"({between} {pair})? {after}"
        if pairs[num_leading:]:
            whole = f"{pairs[num_leading][0]} {after}"
            after = f"{between} {whole}"
        else:
            whole = f"{more} {after} | {_NOTHING}" if more else _NOTHING
        for pair, _ in reversed(pairs[:num_leading]):  # optional: any of them may come first
            after = self._linked(after)
            whole = f"{pair} {after} | {whole}"
            after = f"({between} {pair})? {after}"
        return f"({whole})"

    def _pair(self, key: str, schema: object) -> str:
        if not re.fullmatch(NAME, key):
            self._refuse(f"{key!r}: keys in this model's calls have letters, digits and _ . $ @ / - only")
        values = self._values(schema, *(literal(self._notation.key(key, value)) for value in ("", 0)))
        return self._named(values) if values else ""

    def _other_pair(self, schema: object, listed: Iterable[str]) -> str:
        """Return a key that is not listed, and its value."""
        heads = []
        for value in ("", 0):
            before, after = map(re.escape, self._notation.key("\0", value).split("\0"))
            others = "|".join(map(re.escape, listed))
            is_other = f" & ~/{in_slashes(f'{before}({others}){after}')}/" if others else ""
            heads.append(self._named(f"/{in_slashes(before + NAME + after)}/{is_other}", is_terminal=True))
        return self._values(schema, *heads)

    def _values(self, schema: object, text_head: str, other_head: str) -> str:
        """Return the values of a schema with their ends, each behind the head for its type."""
        values = self._alternatives(schema)
        texts, others = ([value for is_text, value in values if is_text is kind] for kind in (True, False))
        if text_head == other_head:
            is_any = not self._notation.quote and self._text({}) in texts
            texts, others = [self._text({})] if is_any else texts + others, []
        return _either(f"{head} {_either(some)}" for head, some in ((text_head, texts), (other_head, others)) if some)

    def _alternatives(self, schema: object) -> list[tuple[bool, str]]:
        """Return the kinds of values with their ends, and whether each is a text."""
        schema = {} if schema is True else schema
        if not isinstance(schema, Mapping) or not schema.keys() <= {"$ref"}:
            return self._kinds(schema)
        reference = schema.get("$ref", _ANY)
        if self._notation.is_nested:
            return [(False, self._definition(reference))]
        if reference not in self._referenced:
            self._referenced[reference] = []  # while it is followed: it adds nothing to itself
            self._referenced[reference] = self._kinds(self._definition_of(reference))
        return self._referenced[reference]

    def _kinds(self, schema: object) -> list[tuple[bool, str]]:
        notation, types, own_types = self._notation, json_types(schema, self._root), self._notation.own_types
        if not types & own_types:
            return [self._json(schema if isinstance(schema, Mapping) else {})]
        joined = self._joined(schema)
        if "anyOf" in joined:
            options = self._options(joined)
            return [*dict.fromkeys(value for option in options for value in self._alternatives(option))]
        if "enum" in joined or "const" in joined:
            constants = joined.get("enum", [joined.get("const")])
            constants = [each for each in constants if json_type(each) in types and self._is_writable(each)]
            return [(isinstance(each, str), literal(notation.value(each))) for each in constants]
        values = []
        if "string" in types & own_types and joined.get("minLength", 0) <= joined.get("maxLength", math.inf):
            values.append((True, self._text(joined)))
        if "array" in types & own_types:
            values.append((False, self._array(joined)))
        if "object" in types & own_types:
            values.append((False, f'"{{" {self._named(self._pairs(joined))} "}}"'))
        for kind, words in _WORDS.items():
            if kind in types & own_types:
                written = (notation.words.get(word, word) + notation.after_value for word in words)
                values.append((False, _either(map(literal, written))))
        if others := sorted(types - own_types):
            if joined.get("type") == "integer":
                others = ["integer"]
            kept = _NUMBERS if notation.is_nested else joined.keys()
            values.append(self._json({**{key: joined[key] for key in joined if key in kept}, "type": others}))
        return values

    def _json(self, schema: Mapping[str, Any]) -> tuple[bool, str]:
        value = {key: value for key, value in schema.items() if key != "patterns"}
        value |= {"x-guidance": self._root["x-guidance"], "$defs": self._definitions_in(value)}
        if patterns := schema.get("patterns"):
            value["allOf"] = [{"pattern": f"^({pattern})$"} for pattern in patterns]
        return False, f"{self._named(f'%json {json.dumps(value)}')} {literal(self._notation.after_value)}"

    def _definitions_in(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """Return the definitions that a schema refers to, and those that they refer to."""
        found: dict[str, Any] = {}
        waiting: list[Any] = [schema]
        while waiting:
            for name in _DEFINITION.findall(json.dumps(waiting.pop())):
                if name not in found:
                    found[name] = self._root["$defs"][name]
                    waiting.append(found[name])
        return found

    def _array(self, schema: Mapping[str, Any]) -> str:
        prefix, rest = [self._item(each) for each in schema.get("prefixItems", ())], schema.get("items", True)
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        more = "" if rest is False else self._item(rest)
        if more and not prefix and high != 0:
            prefix = [more]
        between = literal(self._notation.between)
        least, most = max(0, low - len(prefix)), "" if high is None else max(0, high - len(prefix))
        items = f"({between} {more}){{{least},{most}}}" if more and most != 0 else ""
        for number, item in reversed([*enumerate(prefix[:high])]):
            items = f"{between if number else ''} {item} {items}"
            items = items if number < low else f"({items})?"
        return f'"[" {items} "]"'

    def _item(self, schema: object) -> str:
        return self._named(_either(value for _, value in self._alternatives(schema)))

    def _text(self, schema: Mapping[str, Any]) -> str:
        """Return a text with its end. The text cannot contain the mark that ends it."""
        notation = self._notation
        rules = [f"({pattern})" for pattern in schema.get("patterns", ())]
        if schema.keys() & {"minLength", "maxLength"}:
            rules.append(rf"(.|\n){{{schema.get('minLength', 0)},{schema.get('maxLength', '')}}}")
        text = " & ".join(f"/{in_slashes(rule)}/" for rule in rules or [r"(.|\n)*"])
        text = f"{text} & ~/(.|\\n)*{in_slashes(re.escape(notation.text_end.strip()))}(.|\\n)*/"
        ended = self._named(f"{self._named(text, is_terminal=True)} {literal(notation.text_end)}", is_lazy=True)
        return f"{literal(notation.quote)} {ended} {literal(notation.after_value.removeprefix(notation.text_end))}"

    def _is_writable(self, value: object) -> bool:
        notation = self._notation
        return not isinstance(value, str) or notation.quote == '"' or notation.text_end.strip() not in value

    def _options(self, schema: Mapping[str, Any]) -> list[object]:
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        return [self._joined({"allOf": [rest, option]}) if rest else option for option in schema["anyOf"]]

    def _joined(self, schema: object) -> Mapping[str, Any]:
        """Return a schema with what it refers to, and all parts that a value must satisfy, as one."""
        self._num_parts += 1
        if self._num_parts > MAX_PARTS:
            self._refuse(f"more than {MAX_PARTS} parts, with those that references repeat")
        if not isinstance(schema, Mapping):
            return {} if schema else {"enum": []}
        result = {key: value for key, value in schema.items() if key not in ("$ref", "allOf", "pattern", "format")}
        patterns = [str(schema["pattern"]).removeprefix("^").removesuffix("$")] if "pattern" in schema else []
        patterns += [_FORMATS[schema["format"]]] if "format" in schema else []
        parts: list[Mapping[str, Any]] = [{"patterns": patterns}] if patterns else []
        if "$ref" in schema:
            parts.append(self._joined(referenced(schema["$ref"], self._root)))
        for part in [*parts, *map(self._joined, schema.get("allOf", ()))]:
            for key, value in part.items():
                result[key] = self._join(key, result[key], value) if key in result else value
        return result

    def _join(self, key: str, one: Any, other: Any) -> Any:
        if key == "properties":
            return {name: _both(one, other, name) for name in {**one, **other}}
        if one == other:
            return one
        if key == "type":
            return [each for each in listed(one) if each in listed(other)]
        if key not in _JOINED:
            self._refuse(f"{key} of two schemas of one value is not enforced in this model's calls")
        return _JOINED[key](one, other)

    def _definition(self, reference: str) -> str:
        if reference not in self._definitions:
            self._definitions[reference] = self._linked("") or self._new_name()
            self._waiting.append(reference)
        return self._definitions[reference]

    def _definition_of(self, reference: str) -> object:
        return {} if reference == _ANY else referenced(reference, self._root)

    def _named(self, expression: str, *, is_terminal: bool = False, is_lazy: bool = False) -> str:
        """Return the name of the rule for an expression."""
        if not expression:
            return ""
        if expression not in self._names:
            name = self._new_name()
            self._names[expression] = name = name.upper() if is_terminal else name
            self._num_chars += len(expression)
            if self._num_chars > MAX_LARK_CHARS:
                self._refuse(f"the grammar of these tools has more than {MAX_LARK_CHARS} characters")
            self.rules.append(f"{name}{'[lazy]' if is_lazy else ''}: {expression}")
        return self._names[expression]

    def _linked(self, expression: str) -> str:
        """Return the name of a rule that may be the next one in a long chain."""
        self._num_links += 1
        if self._num_links > MAX_LINKS:
            self._refuse(f"more than {MAX_LINKS} optional properties and definitions")
        return self._named(expression)

    def _new_name(self) -> str:
        return f"a{next(self._numbers)}"

    def _refuse(self, rule: str) -> NoReturn:
        raise InvalidRequest(rule, self._place)


def literal(text: str) -> str:
    """Write a text for a rule."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def _either(expressions: Iterable[str]) -> str:
    different = list(dict.fromkeys(expressions))
    return different[0] if len(different) == 1 else f"({' | '.join(different)})" if different else ""


def in_slashes(expression: str) -> str:
    return _ESCAPES.sub(
        lambda found: {"/": r"\x2f", r"\/": r"\x2f", "\n": r"\n", "\\\n": r"\n"}.get(found[0], found[0]), expression
    )


def _both(one: Mapping[str, Any], other: Mapping[str, Any], name: str) -> object:
    return {"allOf": [one[name], other[name]]} if name in one and name in other else {**other, **one}[name]
