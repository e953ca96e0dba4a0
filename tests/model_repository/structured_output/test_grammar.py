import json

import pytest

from model_repository.contract.request import OutputFormat
from model_repository.errors import InvalidRequest
from model_repository.structured_output.grammar import MAX_LARK_CHARS, lark_to_grammar
from tests.model_repository.structured_output.refusals import refusal


@pytest.mark.parametrize(
    ("output_format", "content", "text"),
    [
        (OutputFormat.REGEX, "", "empty"),
        (OutputFormat.REGEX, "(?<!a)b", "look-behind"),
        (OutputFormat.CHOICE, "[]", "1 to 1000"),
        (OutputFormat.CHOICE, '["a", ""]', "choice[1]"),
        (OutputFormat.CHOICE, '["a", 1]', "choice[1]"),
        (OutputFormat.CHOICE, '"a"', "list"),
        (OutputFormat.CHOICE, '["\\ud800"]', "surrogate"),
        (OutputFormat.CHOICE, json.dumps([str(n) for n in range(1001)]), "1 to 1000"),
        (OutputFormat.GRAMMAR, "root ::= other", "'other' not found"),
    ],
)
def test_malformed_structured_output_is_refused_with_a_short_reason(output_format, content, text):
    assert text in refusal(output_format, content).text


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ("start: other", "other"),
        ("start: <|eos|>", "special_token"),
        ("start: <[5]>", "no tokenizer"),
        ("start: start", "no text satisfies it"),
        ('start: %json {"uniqueItems": true}', "uniqueItems"),
        ('start: %json {"oneOf": [{}, {}], "x-guidance": {"coerce_one_of": true}}', "oneOf"),
        ('start: "\ud800"', "surrogate"),
        (f'start: "{"a" * MAX_LARK_CHARS}"', "characters: at most"),
    ],
    ids=range(8),
)
def test_malformed_rules_are_refused_with_a_short_reason(rules, text):
    with pytest.raises(InvalidRequest) as caught:
        lark_to_grammar(rules)
    assert text in caught.value.text and len(caught.value.text) < 500


def chain(num_rules):
    return "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(num_rules)) + f'r{num_rules}: "a"'


LONG_CHAIN = {str(n): {"allOf": [{"$ref": f"#/d/{n + 1}"}, {"minimum": n}]} for n in range(1000)}


# Each of these crashed, hung or filled the memory when given to llguidance as it is.
@pytest.mark.parametrize(
    ("output_format", "content"),
    [
        (OutputFormat.JSON_SCHEMA, "[" * 99_000),
        (OutputFormat.JSON_SCHEMA, "[" * 70 + "]" * 70),
        (OutputFormat.JSON_SCHEMA, " " * 100_001),
        (OutputFormat.JSON_SCHEMA, json.dumps({"$ref": "#/d/0", "d": LONG_CHAIN | {"1000": {}}})),
        (
            OutputFormat.JSON_SCHEMA,
            json.dumps({"allOf": [{"anyOf": [{"required": [f"{n}{m}"]} for m in "ab"]} for n in range(30)]}),
        ),
        (OutputFormat.REGEX, "(a{1000}){1000}"),
        (OutputFormat.REGEX, "a?" * 2400),
        (OutputFormat.REGEX, "(" * 2000 + "a" + ")" * 2000),
        (OutputFormat.GRAMMAR, "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000),
        (OutputFormat.GRAMMAR, chain(4000).replace(":", " ::=").replace("start", "root")),
        (OutputFormat.GRAMMAR, "root ::= " + '"a"? ' * 5000),
    ],
    ids=range(11),
)
def test_hostile_structured_output_is_refused_quickly(output_format, content):
    refusal(output_format, content)
