import json
import time

import pytest

from model_repository.generation import Guide, GuideKind
from model_repository.guides.grammar import grammar_text, guide_to_grammar
from tests.model_repository.guides.refusals import refusal


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (GuideKind.JSON_OBJECT, ""),
        (GuideKind.JSON_SCHEMA, '{"type": "object", "properties": {"a": {"type": "string", "pattern": "^a"}}}'),
        (GuideKind.REGEX, "[a-z]+/"),
        (GuideKind.CHOICE, '["a", "b"]'),
        (GuideKind.GRAMMAR, 'root ::= "a"'),
        (GuideKind.LARK, 'start: "a"'),
    ],
)
def test_grammar_is_the_same_with_and_without_its_check(kind, content):
    guide = Guide(kind, content)
    assert grammar_text(guide) == guide_to_grammar(guide)


@pytest.mark.parametrize(
    ("kind", "content", "text"),
    [
        (GuideKind.REGEX, "", "empty"),
        (GuideKind.REGEX, "(?<!a)b", "look-behind"),
        (GuideKind.REGEX, r"(a)\1", "back references"),
        (GuideKind.REGEX, r"\bword", "word boundaries"),
        (GuideKind.REGEX, "(a", "unclosed"),
        (GuideKind.REGEX, "[a", "no end"),
        (GuideKind.REGEX, "a" * 6000, "5000"),
        (GuideKind.CHOICE, "[]", "1 to 1000"),
        (GuideKind.CHOICE, '["a", ""]', "choice[1]"),
        (GuideKind.CHOICE, '["a", 1]', "choice[1]"),
        (GuideKind.CHOICE, '"a"', "list"),
        (GuideKind.CHOICE, '["\\ud800"]', "surrogate"),
        (GuideKind.CHOICE, json.dumps([str(n) for n in range(1001)]), "1 to 1000"),
        (GuideKind.GRAMMAR, 'root ::= "a"\nb ::= %', "line 2"),
        (GuideKind.GRAMMAR, "root ::= other", "'other' not found"),
        (GuideKind.GRAMMAR, r'root ::= "\q"', "escape"),
        (GuideKind.LARK, "start: other", "other"),
        (GuideKind.LARK, "start: <|eos|>", "special tokens"),
        (GuideKind.LARK, "start: <[5]>", "special tokens"),
        (GuideKind.LARK, "start: start", "no text satisfies it"),
        (GuideKind.LARK, 'start: %json {"uniqueItems": true}', "uniqueItems"),
        (GuideKind.LARK, 'start: %json {"oneOf": [{}, {}], "x-guidance": {"coerce_one_of": true}}', "oneOf"),
    ],
)
def test_bad_guide_is_refused_with_a_short_reason(kind, content, text):
    assert text in refusal(kind, content).text


def chain(num_rules):
    return "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(num_rules)) + f'r{num_rules}: "a"'


def nested(depth):
    schema: dict = {}
    for _ in range(depth):
        schema = {"anyOf": [schema, {"items": schema}]}
    return schema


# One name, written in many ways.
SPELLINGS = ["".join(f"%{ord(c):02x}" if n >> i & 1 else c for i, c in enumerate("definition")) for n in range(250)]
DEFINITION = {"enum": [f"value {n}" for n in range(4000)]}


# Each of these crashed, hung or filled the memory when given to llguidance as it is.
@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (GuideKind.JSON_SCHEMA, "[" * 99_000),
        (GuideKind.JSON_SCHEMA, "[" * 70 + "]" * 70),
        (GuideKind.JSON_SCHEMA, " " * 100_001),
        (
            GuideKind.JSON_SCHEMA,
            json.dumps(
                {
                    "$ref": "#/d/0",
                    "d": {str(n): {"allOf": [{"$ref": f"#/d/{n + 1}"}, {"minimum": n}]} for n in range(1000)}
                    | {"1000": {}},
                }
            ),
        ),
        (
            GuideKind.JSON_SCHEMA,
            json.dumps({"allOf": [{"anyOf": [{"required": [f"{n}{m}"]} for m in "ab"]} for n in range(30)]}),
        ),
        (GuideKind.REGEX, "(a{1000}){1000}"),
        (GuideKind.REGEX, "a?" * 2400),
        (GuideKind.REGEX, "(" * 2000 + "a" + ")" * 2000),
        (GuideKind.GRAMMAR, "root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000),
        (GuideKind.GRAMMAR, chain(4000).replace(":", " ::=").replace("start", "root")),
        (GuideKind.LARK, chain(4000)),
        (GuideKind.LARK, "start: " + '"a"? ' * 5000),
        (GuideKind.LARK, "start: " + "(" * 30_000 + '"a"' + ")" * 30_000),
    ],
    ids=range(13),
)
def test_hostile_guide_is_refused_quickly(kind, content):
    refusal(kind, content)


def test_large_schemas_are_compiled_quickly():
    start_s = time.process_time()
    guide_to_grammar(Guide(GuideKind.JSON_SCHEMA, json.dumps({"enum": [f"value {n}" for n in range(5000)]})))
    spellings = [{"$ref": f"#/$defs/{spelling}"} for spelling in SPELLINGS]
    guide_to_grammar(
        Guide(GuideKind.JSON_SCHEMA, json.dumps({"anyOf": spellings, "$defs": {"definition": DEFINITION}}))
    )
    guide_to_grammar(Guide(GuideKind.CHOICE, json.dumps([f"choice {n}" for n in range(1000)])))
    guide_to_grammar(Guide(GuideKind.LARK, chain(400)))
    assert time.process_time() - start_s < 2
