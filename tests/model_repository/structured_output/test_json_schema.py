import json
from typing import Any

import pytest

from model_repository.contract.request import MAX_IGNORED_PLACES, MAX_PLACE_CHARS, OutputFormat, StructuredOutput
from model_repository.errors import Unsupported
from model_repository.structured_output import json_schema
from model_repository.structured_output.grammar import structured_output_to_grammar
from model_repository.structured_output.json_schema import IgnoredKeywords, enforceable_schema
from tests.model_repository.structured_output.acceptance import accepts_json, ignored_keywords, schema_to_grammar
from tests.model_repository.structured_output.refusals import refusal, schema_refusal


@pytest.mark.parametrize(
    "schema",
    [
        {"uniqueItems": True},
        {"contains": {}},
        {"not": {}},
        {"if": {}},
        {"dependentRequired": {"a": ["b"]}},
        {"propertyNames": {"pattern": "^a"}},
        {"unevaluatedProperties": False},
        {"format": "int32"},
        {"minProperties": 2},
        {"minProperties": 1, "properties": {"a": {}}, "additionalProperties": {}},
        {"maxProperties": 1, "properties": {"a": {}}, "patternProperties": {"b": {}}},
        {"maxProperties": 2, "properties": {"a": {}, "b": {}, "c": {}}},
        {"multipleOf": 123456789},
        {"minimum": 2**53 + 1},
        {"const": 2**53 + 1},
        {"pattern": "(?=a)"},
        {"pattern": "\\x00"},
        {"patternProperties": {"a\\b": {}}},
        {"minItems": 100_000},
        {"$dynamicRef": "#a"},
        {"required": True},
        {"exclusiveMinimum": True},
        {"$ref": "https://example.com/a"},
        {"properties": {str(n): {} for n in range(300)}},
    ],
)
def test_keyword_that_is_not_enforced_is_refused_where_the_schema_is_strict_and_else_listed(schema):
    whole = {"type": "object", "properties": {"tags": {"title": "Tags", **schema}, "n": {"type": "integer"}}}
    keyword = next(iter(schema))
    path = f"schema.properties.tags.{keyword}"
    error = schema_refusal(whole)
    assert isinstance(error, Unsupported)
    assert error.text.startswith(path)
    assert ignored_keywords(whole) == [path]
    assert keyword not in enforceable_schema(whole, is_strict=False)["properties"]["tags"]
    structured_output_to_grammar(StructuredOutput(OutputFormat.JSON_SCHEMA, json.dumps(whole), is_strict=False))


def test_a_part_with_many_references_is_rewritten_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 50 references rewrote the thousands of parts inside of it again: 3 s of the frontend for 53 kB."""
    nested: dict[str, Any] = {"prefixItems": [{}] * 6_000}
    for _ in range(60):
        nested = {"items": nested}
    references = [{"$ref": "#" + "/items" * (number + 1)} for number in range(50)]
    schema = {**nested, "prefixItems": references, "allOf": references}
    rewritten: list[str] = []
    rewrite = json_schema._Rewriting._object

    def counted(rewriting: Any, schema: Any, path: str, is_open: bool) -> Any:
        rewritten.append(path)
        return rewrite(rewriting, schema, path, is_open)

    monkeypatch.setattr(json_schema._Rewriting, "_object", counted)
    assert "characters when written out: at most" in schema_refusal(schema).text
    assert len(rewritten) < 3 * 6_000  # each part open, and each closed


@pytest.mark.parametrize(
    ("bounds", "least", "most"),
    [
        ({"minimum": -(2**63), "maximum": 2**63 - 1}, -(2**53), 2**53),
        ({"minimum": 0, "maximum": 2**64 - 1}, 0, 2**53),
        ({"minimum": -(2.0**63), "exclusiveMaximum": 2.0**63}, -(2**53), 2**53 - 1),
    ],
)
def test_bounds_of_64_bits_let_an_integer_have_the_digits_of_53(bounds: Any, least: int, most: int) -> None:
    """Without the bounds a model wrote digits up to max_tokens."""
    for kind in ("integer", ["integer", "null"]):
        schema = {"type": kind, **bounds}
        assert ignored_keywords(schema) == []
        assert all(accepts_json(schema, value) for value in (least, 5, most))
        assert not any(accepts_json(schema, value) for value in (least - 1, most + 1, 10**16, -(10**16)))
    assert ignored_keywords({"type": ["integer", "number"], "maximum": 2**64}) == ["schema.maximum"]
    assert ignored_keywords({"type": "integer", "maximum": -(2**64)}) == ["schema.maximum"]


def test_the_steps_of_a_request_bound_the_listing_of_all_its_schemas() -> None:
    ignored = IgnoredKeywords()
    schema = {"oneOf": [{"const": number} for number in range(60)]}
    for number in range(10):
        enforceable_schema(schema, f"s{number}", is_strict=False, ignored=ignored)
    assert ignored.num_steps_left < 0  # the rest was not compared
    first = int(ignored.places[0].removeprefix("s").removesuffix(".oneOf"))
    assert first > 0 and ignored.places == tuple(f"s{number}.oneOf" for number in range(first, 10))


def test_the_listed_keywords_are_few_and_short() -> None:
    ignored = IgnoredKeywords()
    schema: Any = {"properties": {f"{number:03}{'x' * 300}": {"not": {}} for number in range(100)}}
    enforceable_schema(schema, is_strict=False, ignored=ignored)
    assert len(ignored.places) == MAX_IGNORED_PLACES + 1
    assert {len(place) for place in ignored.places} == {MAX_PLACE_CHARS}


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"minLength": -1}, "schema.minLength"),
        ({"minimum": True}, "schema.minimum"),
        ({"type": "text"}, "schema.type"),
        ({"enum": []}, "schema.enum"),
        ({"format": []}, "schema.format"),
        ({"format": "iri", "pattern": "^a"}, "schema.format"),
        ({"minProperties": 1, "required": [[1]]}, "schema.required"),
        ({"properties": {}, "required": None}, "schema.required: must be a list"),
        ({"exclusiveMinimum": True, "minimum": "a"}, "schema.minimum"),
        ({"anyOf": []}, "schema.anyOf"),
        ({"properties": []}, "schema.properties"),
        ({"properties": {"a": 1}}, "schema.properties.a"),
        ({"anyOf": [{}, {"items": {"maximum": "3"}}]}, "schema.anyOf[1].items.maximum"),
        ({"items": {"$ref": "#/$defs/a"}}, "schema.items.$ref"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"not": {}}}}, "schema.$defs.a.not"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$id": "b"}}}, "schema.$defs.a.$id"),
        ({"$ref": "#"}, "#: refers to itself"),
        ({"properties": {"next": {"$ref": "#"}}, "required": ["next"], "type": "object"}, "#: refers to itself"),
        ({"allOf": [{"type": "string"}, {"type": "null"}]}, "schema: Unsatisfiable"),
        (False, "schema: nothing satisfies it"),
        (3, "schema: a schema must be"),
        ({"const": "\ud800"}, ""),
    ],
)
def test_malformed_schema_is_refused(schema, path):
    assert schema_refusal(schema).text.startswith(path)


@pytest.mark.parametrize(
    "content", ["", "[", "NaN", '{"minimum": Infinity}', '{"maximum": ' + "9" * 5000 + "}", "\ud800"]
)
def test_schema_that_is_no_json_is_refused(content):
    refusal(OutputFormat.JSON_SCHEMA, content)


def test_annotations_constrain_nothing():
    names = "$schema $comment title description default examples deprecated readOnly writeOnly contentMediaType x-order"
    schema = {"type": "string", **dict.fromkeys(names.split(), "text"), "discriminator": {}, "uniqueItems": False}
    assert schema_to_grammar(schema) == schema_to_grammar({"type": "string"})


def is_closed(schema):
    return schema.get("additionalProperties") is False


def test_object_with_properties_is_closed_unless_it_is_combined():
    part = {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {}}}}}
    closed = enforceable_schema(part)
    assert is_closed(closed) and is_closed(closed["properties"]["a"])
    assert not is_closed(enforceable_schema({"type": "object"}))
    assert not is_closed(enforceable_schema({**part, "additionalProperties": {"type": "null"}}))
    both = enforceable_schema({"allOf": [part, {"properties": {"c": {}}}]})
    assert not any(is_closed(item) for item in [*both["allOf"], both["allOf"][0]["properties"]["a"]])
    beside = enforceable_schema({**part, "anyOf": [{"properties": {"c": {}}}, {"required": ["a"]}]})
    assert not is_closed(beside) and not is_closed(beside["anyOf"][0])
    assert all(is_closed(item) for item in enforceable_schema({"anyOf": [part, part]})["anyOf"])


def test_definition_is_closed_for_one_reference_and_open_for_another():
    part = {"type": "object", "properties": {"a": {}}}
    mixed = {"allOf": [{"$ref": "#/$defs/P"}, {"required": ["c"]}]}
    schema = {"properties": {"x": {"$ref": "#/$defs/P"}, "y": mixed}, "$defs": {"P": part}}
    assert sorted(is_closed(item) for item in enforceable_schema(schema)["$defs"].values()) == [False, True]


def test_definition_has_one_copy_for_all_notations_of_its_reference():
    references = ["#/$defs/a~1b", "#/$defs/%61~1b", "#/%24defs/a%7E1b"]
    schema = {"anyOf": [{"$ref": reference} for reference in references], "$defs": {"a/b": {"type": "null"}}}
    assert enforceable_schema(schema)["$defs"] == {"d0": {"type": "null"}}


@pytest.mark.parametrize("index", ["01", "٠", "-1", "1", "", "9" * 5000])  # noqa: RUF001 (an Arabic digit)
def test_place_in_a_list_has_one_number(index):
    schema = {"anyOf": [{"type": "null"}, {"$ref": "#/anyOf/0"}][:1], "properties": {"a": {"$ref": "#/anyOf/" + index}}}
    assert "there is nothing of that name" in schema_refusal(schema).text
