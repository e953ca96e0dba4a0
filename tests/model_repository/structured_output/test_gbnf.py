import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_repository.contract.request import OutputFormat, StructuredOutput
from model_repository.errors import InvalidRequest
from model_repository.structured_output.gbnf import gbnf_to_lark
from tests.model_repository.structured_output.acceptance import accepts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r'"\u00e9 a\n"', r'"é a\x0a"'),
        (r'"\U0001f600"', '"😀"'),
        (r'"a\"b\\"', r'"a\x22b\x5c"'),
        ("[+--]", r"/[\x2b-\x2d]/"),
        ("[^a-z -]", r"/[^a-z\x20\x2d]/"),
    ],
)
def test_texts_keep_their_characters(text, expected):
    assert f": {expected}\n" in gbnf_to_lark(f"root ::= {text}\n")


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (r'root ::= "\q"', "no such escape"),
        ('main ::= "a"', "no rule of the name root"),
        (r'root ::= "\ud800"', "no such character"),
        (r'root ::= "\U00110000"', "no such character"),
        ('root ::= "a"\nb ::= %', "line 2"),
        ('root ::= "a" )', r"line 1: Expected name: root ::= \"a\" \)$"),
        ('a ::= "b"\nroot ::= (.', r"line 2: Expected '\)': root ::= \(\.$"),
        ("root ::= # all", 'line 1: an alternative is empty; write "" for the empty text$'),
        ('root ::= a\na ::= "b" |\nc ::= "d"', "line 2: an alternative is empty"),
        ("root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000, "nested too deeply"),
    ],
)
def test_malformed_grammar_is_refused(grammar, text):
    with pytest.raises(InvalidRequest, match=f"^grammar: .*{text}"):
        gbnf_to_lark(grammar)


@pytest.mark.parametrize(
    ("grammar", "names"),
    [
        ("root ::= root", "root"),
        ('root ::= "a" root', "root"),
        ('root ::= "x" | a\na ::= "x" b\nb ::= a | a "y"', "a, b"),
        ('root ::= a+\na ::= a "x"', "root, a"),
        ("root ::= (root root)", "root"),
    ],
)
def test_a_rule_without_an_end_is_refused_by_its_name(grammar, names):
    with pytest.raises(InvalidRequest, match=f"^grammar: no text satisfies {names}: "):
        gbnf_to_lark(grammar)


@pytest.mark.parametrize("grammar", ["root ::= root?", 'root ::= ("a" root)*', 'root ::= "a" | b\nb ::= root "c"'])
def test_a_rule_may_refer_to_itself_where_it_can_end(grammar):
    gbnf_to_lark(grammar)


# Each in GBNF and as an expression of Python's.
LITERALS = [(".", r"[\s\S]"), ('"a"', "a"), ('"ab"', "ab"), (r'"\x2d"', "-"), (r'"\"\\"', r"\"\\"), ('"é/"', "é/")]
LITERALS += [('"*[&"', r"\*\[\&")]
CLASSES = [("[a-c]", "[a-c]"), ("[^ab]", "[^ab]"), (r"[\]\\-]", r"[\]\\\-]"), ("[+--]", r"[\+-\-]")]
CLASSES += [("[&~/ .^]", r"[\&\~/ .^]")]
MARKS = [(mark, mark) for mark in ("", "", "*", "+", "?", "{2}", "{1,}", "{1,3}")]


def sequences(items):
    repeated = st.tuples(items, st.sampled_from(MARKS)).map(
        lambda found: (found[0][0] + found[1][0], f"(?:{found[0][1]}){found[1][1]}")
    )
    joined = st.lists(repeated, min_size=1, max_size=3).map(
        lambda found: (" ".join(part[0] for part in found), "".join(part[1] for part in found))
    )
    return st.lists(joined, min_size=1, max_size=3).map(
        lambda found: (f"({' | '.join(part[0] for part in found)})", f"(?:{'|'.join(part[1] for part in found)})")
    )


PARTS = st.recursive(st.sampled_from(LITERALS + CLASSES), sequences, max_leaves=6)


@settings(max_examples=50, deadline=None)
@given(PARTS, PARTS, st.lists(st.text('abc-"\\é/*[&]+~ .^,\n', max_size=5), max_size=6))
def test_a_grammar_allows_the_texts_that_it_describes(first, second, texts):
    grammar = f"root ::= first second | second # [\nfirst ::= {first[0]}\nsecond ::=\n  {second[0]}"
    for text in texts:
        expected = re.fullmatch(f"(?:{first[1]})?{second[1]}", text)
        assert accepts(StructuredOutput(OutputFormat.GRAMMAR, grammar), text) == bool(expected)
