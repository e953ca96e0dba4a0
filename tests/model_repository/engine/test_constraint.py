import itertools
import json
import random
import re
from datetime import datetime
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from model_repository.contract.request import OutputFormat, StructuredOutput
from model_repository.engine.constraint import MAX_CACHED_BYTES, MAX_WORK, ConstraintCompiler
from model_repository.engine.grammar_budget import MAX_BYTES, MAX_SENDER_BYTES, GrammarBudget
from model_repository.errors import CannotContinue, InvalidRequest, Overloaded, TooManyWaiting
from model_repository.structured_output.compilation import LIMITS
from model_repository.structured_output.grammar import structured_output_to_grammar
from tests.model_repository.structured_output.acceptance import ignored_keywords

PIECES = '": |, |{"|"}|", "|true|null|é|ß€|123|ab|  |\n\n|]}|}}|<tool_call>|</tool_call>|<tool|call>|😀|a|\\"'
BYTE_TABLE = [bytes([n]) for n in range(256)] + [piece.encode() for piece in PIECES.split("|")]
SPECIAL, EOS, OTHER_EOS = len(BYTE_TABLE), len(BYTE_TABLE) + 1, len(BYTE_TABLE) + 2
BYTE_TABLE += [b"", b"", b"</s>"]
VOCAB_SIZE = len(BYTE_TABLE) + 3  # logits that no token has
COMPILER = ConstraintCompiler(BYTE_TABLE, frozenset({EOS, OTHER_EOS}), VOCAB_SIZE)
CLOSING = re.compile(rb'[0-9"}\],: ]')


def grammar(kind, content):
    return structured_output_to_grammar(StructuredOutput(kind, content))


def banned_by(constraint):
    """Return the ids of the tokens that are not allowed now, ascending."""
    return np.flatnonzero(~constraint.allowed()).tolist()


def walk(output, seed, max_tokens=300, compiler=COMPILER):
    """Return a completion of random allowed tokens, or None if it became too long; prefer tokens that end it soon."""
    draw = random.Random(seed)
    constraint = compiler.start(output)
    text = b""
    for step in range(max_tokens):
        banned = set(banned_by(constraint))
        allowed = [token_id for token_id in range(VOCAB_SIZE) if token_id not in banned]
        assert allowed
        ends = [token_id for token_id in allowed if token_id in (EOS, OTHER_EOS)]
        assert len(ends) in (0, 2)
        for token_id in draw.sample(sorted(banned), 2):
            assert not constraint.accept_token(token_id)
        assert step % 8 or banned_by(constraint) == sorted(banned)
        if ends and (draw.random() < 0.4 or ends == allowed):
            assert constraint.accept_token(draw.choice(ends))
            assert len(banned_by(constraint)) == VOCAB_SIZE
            return text
        rest = [token_id for token_id in allowed if token_id not in ends]
        closing = [token_id for token_id in rest if CLOSING.match(BYTE_TABLE[token_id])]
        token_id = draw.choice(closing if closing and draw.random() < min(0.9, 0.3 + step / 30) else rest)
        assert constraint.accept_token(token_id)
        text += BYTE_TABLE[token_id]
    return None


def completions(kind, content, num_walks=8):
    output = grammar(kind, content if isinstance(content, str) else json.dumps(content))
    found = [text.decode() for seed in range(num_walks) if (text := walk(output, seed)) is not None]
    assert found
    return found


def is_int(value):
    return type(value) is int


def is_node(value):
    return value is None or ({*value} == {"v", "next"} and is_int(value["v"]) and is_node(value["next"]))


OBJECT = {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}}}
NODE = {
    "type": "object",
    "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
    "required": ["v", "next"],
}
CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"enum": [7, 9]}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}, "barks": {"const": True}}, "required": ["kind"]}

SCHEMAS = [
    ({"type": "string", "pattern": "b+", "maxLength": 9}, lambda v: "b" in v and len(v) <= 9),
    ({"type": "string", "format": "date-time"}, datetime.fromisoformat),
    ({"type": "string", "format": "email"}, lambda v: re.fullmatch(r"[^@\s]+@[^@\s]+\.[A-Za-z]+", v)),
    ({"const": {"a": [1, {"b": 'é\n"'}]}}, lambda v: v == {"a": [1, {"b": 'é\n"'}]}),
    ({**OBJECT, "required": ["c"]}, lambda v: {"c"} <= {*v} <= {"a", "b", "c"}),
    ({**OBJECT, "minProperties": 1}, lambda v: 1 <= len(v) <= 2),
    ({"type": "object", "maxProperties": 1}, lambda v: len(v) <= 1),
    (
        {**OBJECT, "additionalProperties": {"const": 1}},
        lambda v: all(item == 1 for name, item in v.items() if name not in ("a", "b")) and v.get("a") is None,
    ),
    (
        {"type": "object", "patternProperties": {"^[^\"x]$": {"const": 1}}, "additionalProperties": False},
        lambda v: {*v.values()} <= {1} and all(len(name) == 1 and name not in '"x' for name in v),
    ),
    (
        {"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], "$defs": {"cat": CAT, "dog": DOG}},
        lambda v: {*v} <= ({"kind", "lives"} if v["kind"] == "cat" else {"kind", "barks"}),
    ),
    (
        {"allOf": [OBJECT, {"properties": {"c": {"const": 1}}, "required": ["c"]}]},
        lambda v: v["c"] == 1,
    ),
    ({"$ref": "#/$defs/node", "$defs": {"node": NODE}}, lambda v: v is not None and is_node(v)),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"const": 4}}, "maximum": 5}, lambda v: v == 4),
    ({"type": "object", "propertyNames": {"type": "string"}}, lambda v: isinstance(v, dict)),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "is_valid"), SCHEMAS, ids=range(len(SCHEMAS)))
def test_random_allowed_tokens_satisfy_the_schema(schema, is_valid):
    for text in completions(OutputFormat.JSON_SCHEMA, schema):
        value = json.loads(text)
        assert is_valid(value) not in (False, None), text


# Written by z.toJSONSchema of zod 4.6 and by to_strict_json_schema of openai 3.52 with pydantic 2.14.
OF_CLIENTS = json.loads((Path(__file__).parents[2] / "data" / "client_schemas.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", OF_CLIENTS)
def test_random_allowed_tokens_satisfy_the_strict_schemas_of_clients(name):
    schema = OF_CLIENTS[name]
    structured_output_to_grammar(StructuredOutput(OutputFormat.JSON_SCHEMA, json.dumps(schema), is_strict=True))
    assert {path.rpartition(".")[2] for path in ignored_keywords(schema)} <= {"format"}
    for text in completions(OutputFormat.JSON_SCHEMA, schema):
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)


def test_json_is_any_object_in_one_layout():
    for text in completions(OutputFormat.JSON_OBJECT, "", num_walks=20):
        value = json.loads(text)
        assert isinstance(value, dict)
        outside = re.sub(r'"(?:\\.|[^"\\])*"', '""', text)
        assert not re.search(r"[,:](?! )|[^,:] |  |[\n\t\r]", outside)


def test_choice_and_its_prefix_are_both_possible():
    choices = ["a", "ab", 'abc/"\\\n', "😀 é", "<[3]>", "$(.*)"]
    assert {*completions(OutputFormat.CHOICE, choices, num_walks=60)} == {*choices}


def test_only_end_tokens_are_allowed_when_nothing_can_follow():
    constraint = COMPILER.start(grammar(OutputFormat.CHOICE, '["a"]'))
    assert not constraint.accept_token(EOS)
    assert constraint.accept_token(97)
    assert {*range(VOCAB_SIZE)} - {*banned_by(constraint)} == {EOS, OTHER_EOS}
    assert constraint.accept_token(OTHER_EOS)
    assert not constraint.accept_token(EOS)


def test_tokens_without_text_are_never_allowed():
    constraint = COMPILER.start(grammar(OutputFormat.REGEX, "(?s:.*)"))
    banned = banned_by(constraint)
    assert {SPECIAL, *range(len(BYTE_TABLE), VOCAB_SIZE)} <= {*banned}
    for token_id in (SPECIAL, VOCAB_SIZE - 1, VOCAB_SIZE, -1):
        assert not constraint.accept_token(token_id)
    assert banned_by(constraint) == banned


def test_states_of_one_structured_output_are_independent():
    output = grammar(OutputFormat.CHOICE, '["ab", "ba"]')
    one, other = COMPILER.start(output), COMPILER.start(output)
    assert one.accept_token(97) and other.accept_token(98)
    assert not one.accept_token(97) and other.accept_token(97)
    assert COMPILER.start(output).accept_token(97)


def test_vocabulary_may_be_shorter_than_the_byte_table_and_without_an_end():
    constraint = ConstraintCompiler(BYTE_TABLE, frozenset(), 128).start(grammar(OutputFormat.REGEX, "a[b-é]"))
    assert constraint.accept_token(97) and not constraint.accept_token(256)
    assert banned_by(constraint) == [n for n in range(128) if n < 98]
    assert constraint.accept_token(99)
    assert banned_by(constraint) == [*range(128)]


def test_text_that_the_vocabulary_cannot_write_fails_the_request():
    constraint = ConstraintCompiler([b"a", b"b", b""], frozenset({2}), 3).start(grammar(OutputFormat.CHOICE, '["ax"]'))
    with pytest.raises(InvalidRequest):
        constraint.accept_token(0) and banned_by(constraint)
    with pytest.raises(InvalidRequest):
        banned_by(constraint)


def test_structured_output_that_becomes_too_complex_fails_the_request():
    # Behind the brace each object is an item of its own; the first mask, which the tokenizer stage tries, has but one.
    schema = {"enum": [{"a": n} for n in range(2 * LIMITS.max_items_in_row)]}
    output = grammar(OutputFormat.JSON_SCHEMA, json.dumps(schema))
    constraint = COMPILER.start(output)
    banned_by(constraint)
    with pytest.raises(InvalidRequest, match="the schema or grammar cannot be followed") as caught:
        constraint.accept_token(b"{"[0]) and banned_by(constraint)
    assert len(caught.value.text) < 400
    with pytest.raises(InvalidRequest):
        constraint.accept_token(97)


def test_unchecked_structured_output_is_refused_or_fails_the_request():
    for unchecked in ("start: other", 'start: %json {"pattern": "("}'):
        with pytest.raises(InvalidRequest):
            COMPILER.start(unchecked)
    with pytest.raises(InvalidRequest):
        banned_by(COMPILER.start("start: start"))


def test_compiled_grammar_is_cached_and_a_refusal_is_not():
    with pytest.raises(InvalidRequest):
        COMPILER.start("start: /(/")
    output = grammar(OutputFormat.JSON_SCHEMA, json.dumps({"enum": [f"v{n}" for n in range(2000)]}))
    assert COMPILER.start(output)._compiled is COMPILER.start(output)._compiled


def test_each_sender_has_compiled_grammars_of_its_own():
    """The time of an answer told one sender that another one had sent the same grammar."""
    output = grammar(OutputFormat.REGEX, "[a-c]{3,9}")
    assert COMPILER.start(output, "a")._compiled is not COMPILER.start(output, "b")._compiled


AMBIGUOUS = grammar(OutputFormat.GRAMMAR, "root ::= s\ns ::= s s s | s s | [a-z]")


def num_followed(output, max_tokens):
    """Return the number of tokens until the work ends a completion, or this number, and the work."""
    constraint = COMPILER.start(output)
    for number in range(max_tokens):
        try:
            constraint.allowed()
            assert constraint.accept_token(97 + number % 26)
        except CannotContinue:
            return number, constraint.work
    return max_tokens, constraint.work


def test_the_work_of_masks_ends_a_completion_at_the_same_token_each_time(monkeypatch):
    monkeypatch.setattr("model_repository.engine.constraint.MAX_WORK", 2_000_000)
    first = num_followed(AMBIGUOUS, 300)
    assert first == num_followed(AMBIGUOUS, 300)
    assert 20 < first[0] < 100 and first[1] > 2_000_000


def test_the_work_of_a_usual_form_is_small():
    num_tokens, work = num_followed(grammar(OutputFormat.REGEX, "[a-z ]{1,2000}"), 1600)
    assert (num_tokens, work < MAX_WORK / 20) == (1600, True)


def outputs():
    """Yield structured outputs, each another one."""
    for number in itertools.count():
        yield grammar(OutputFormat.REGEX, f"a{number}")


def compiler():
    return ConstraintCompiler(BYTE_TABLE, frozenset({EOS}), VOCAB_SIZE, GrammarBudget())


def test_cached_grammars_stay_within_their_memory():
    one = compiler()
    for output in itertools.islice(outputs(), 100):
        one.start(output, num_bytes=MAX_BYTES // 20)
        assert one.num_bytes <= MAX_CACHED_BYTES
    assert one.num_bytes > MAX_BYTES // 3


def test_the_grammars_in_use_by_one_sender_leave_room_for_others():
    one, more, num_bytes, held = compiler(), outputs(), MAX_SENDER_BYTES // 4, []
    with pytest.raises(TooManyWaiting, match=f"may take {MAX_SENDER_BYTES >> 20} MiB"):
        for output in more:
            held.append(one.start(output, "hog", num_bytes))
    other = [one.start(next(more), "other", num_bytes) for _ in range(3)]
    held.clear()
    assert one.start(next(more), "hog", num_bytes) and other


def test_grammars_in_use_by_many_senders_stay_within_their_memory():
    one, held = compiler(), []
    with pytest.raises(Overloaded, match="MiB"):
        for number, output in enumerate(outputs()):
            held.append(one.start(output, f"sender {number}", MAX_SENDER_BYTES // 2))
    assert MAX_BYTES // 2 < one.num_bytes <= MAX_BYTES
