import pytest

from model_repository.structured_output.compilation import short_message


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
