import pytest

from model_repository.structured_output.satisfaction import is_finite
from tests.model_repository.structured_output.acceptance import schema_to_grammar
from tests.model_repository.structured_output.refusals import schema_refusal

A = {"type": "object", "properties": {"kind": {"const": "a"}}, "required": ["kind"]}
B = {"type": "object", "properties": {"kind": {"enum": ["b", "c"]}}, "required": ["kind"]}


@pytest.mark.parametrize(
    "options",
    [
        [{"type": "string"}, {"type": ["integer", "null"]}],
        [{"const": 1}, {"const": True}, {"enum": ["a", [1]]}],
        [A, B],
        [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}],
        [{"allOf": [{"$ref": "#/$defs/A"}]}, {"anyOf": [B, {"type": "null"}]}],
        [
            {"type": "object", "required": ["a"]},
            {"type": "object", "properties": {"b": {}}, "additionalProperties": False},
        ],
        [{}],
    ],
)
def test_one_of_disjoint_alternatives_is_enforced(options):
    schema_to_grammar({"oneOf": options, "$defs": {"A": A, "B": B}})


@pytest.mark.parametrize(
    "options",
    [
        [{"type": "integer"}, {"type": "number"}],
        [{"const": 1}, {"const": 1.0}],
        [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}],
        [A, A],
        [{**A, "required": []}, {**B, "required": []}],
        [{**A, "type": ["object", "null"]}, {**B, "type": ["object", "null"]}],
    ],
)
def test_one_of_overlapping_alternatives_is_refused(options):
    assert "[0] and [1] may both match" in schema_refusal({"oneOf": options}).text


@pytest.mark.parametrize("malformed", [5, {"allOf": 5}, {"$ref": 5}, {"required": 5}, {"type": [{}]}])
def test_malformed_alternative_behind_a_reference_is_refused_with_its_path(malformed):
    schema = {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "string"}], "$defs": {"a": malformed}}
    assert schema_refusal(schema).text.startswith("schema.$defs.a")


def test_alternative_far_behind_references_overlaps_all_the_same():
    anything: dict = {}
    for _ in range(10):
        anything = {"allOf": [anything]}
    assert "[0] and [1] may both match" in schema_refusal({"oneOf": [anything, {"type": "array"}]}).text


# Each took a minute or more.
@pytest.mark.parametrize(
    ("shared", "own"),
    [
        ({"enum": [f"x{n}" for n in range(8000)]}, lambda n: {"enum": [f"x{n}", f"y{n}", n]}),
        (
            {"required": [f"x{n}" for n in range(6000)]},
            lambda n: {"type": "object", "properties": {"x9": {"const": n}}},
        ),
    ],
)
def test_alternatives_that_take_long_to_distinguish_are_refused_quickly(shared, own):
    options = [{"allOf": [{"$ref": "#/$defs/shared"}, own(n)]} for n in range(100)]
    assert "too many to be told apart" in schema_refusal({"oneOf": options, "$defs": {"shared": shared}}).text


def test_a_schema_without_finite_values_is_none():
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["next"]}
    assert not is_finite(node, set())
    assert is_finite(node, {"node"})
    assert is_finite({**node, "required": []}, set())
    assert is_finite({**node, "type": ["object", "null"]}, set())
    assert is_finite({"anyOf": [node, {"type": "null"}]}, set())
    assert not is_finite({"type": "array", "items": node, "minItems": 1}, set())
    assert is_finite({"type": "array", "items": node}, set())
