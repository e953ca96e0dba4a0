import pytest

from model_repository.errors import InvalidRequest, Unsupported
from model_repository.structured_output.compilation import check, short_message


def test_grammar_that_can_be_followed_passes():
    check('start: "a" | "b"+')


@pytest.mark.parametrize(
    ("grammar", "error", "text"),
    [
        ("start: other", InvalidRequest, "other"),
        ("start: start", InvalidRequest, "^no text satisfies it$"),
        ("start: <|eos|>", Unsupported, "special tokens"),
        ('start: %json {"oneOf": [{}, {}], "x-guidance": {"coerce_one_of": true}}', Unsupported, "oneOf"),
    ],
)
def test_grammar_that_cannot_be_followed_is_refused(grammar, error, text):
    with pytest.raises(InvalidRequest, match=text) as caught:
        check(grammar)
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("message", "short"),
    [
        ("", "unknown error"),
        ("\n what is wrong\nand more", "what is wrong"),
        ("regex parse error:\n    (a\n    ^\nerror: unclosed group", "unclosed group"),
        ("at 1(8): failed to compile JSON schema: Unsatisfiable", "schema: Unsatisfiable"),
        ("a" * 1000, "a" * 300),
        ("NoExtensionBias", "no text satisfies it"),
        ("ParserTooComplex", "it is too complex"),
        (
            "at 1(8): failed to compile JSON schema: Unsatisfiable schema: Regex is empty:  (And (SearchRegex /a/))",
            "schema: no text has its pattern, its format and its length together",
        ),
    ],
)
def test_message_is_shortened_to_the_mistake(message, short):
    assert short_message(message) == short
