import pytest

from model_repository.errors import InvalidRequest
from model_repository.guides.gbnf import gbnf_to_lark


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
    assert f"start: {expected}\n" in gbnf_to_lark(f"root ::= {text}\n")


def test_quotes_in_comments_are_no_texts():
    assert gbnf_to_lark('root ::= "a" # "\nb ::= "c" # [\n').count('"') == 4


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        (r'root ::= "\q"', "no such escape"),
        (r'root ::= "\ud800"', "no such character"),
        (r'root ::= "\U00110000"', "no such character"),
        ('root ::= "a"\nb ::= %', "line 2"),
        ("root ::= " + "(" * 30_000 + '"a"' + ")" * 30_000, "nested too deeply"),
    ],
)
def test_malformed_grammar_is_refused(grammar, text):
    with pytest.raises(InvalidRequest, match=f"^grammar: .*{text}"):
        gbnf_to_lark(grammar)
