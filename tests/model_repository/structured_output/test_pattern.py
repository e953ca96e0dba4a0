"""A pattern has the same meaning for llguidance as for a reader of regular expressions."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_repository.contract.request import OutputFormat, StructuredOutput
from model_repository.errors import InvalidRequest, Unsupported
from model_repository.structured_output.pattern import search_pattern, whole_pattern
from tests.model_repository.structured_output.acceptance import accepts, accepts_json


def is_found(pattern: str, text: str) -> bool:
    return accepts_json({"type": "string", "pattern": pattern}, text)


def is_matched(pattern: str, text: str) -> bool:
    return accepts(StructuredOutput(OutputFormat.REGEX, pattern), text)


EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"


@pytest.mark.parametrize(
    ("pattern", "found", "other"),
    [
        (r"^\d$", "5", ["٥", "a"]),  # noqa: RUF001 (an Arabic digit)
        (r"^\/\-\$\ \_$", "/-$ _", ["/-$"]),
        (r"^\u00e9\x41\u{1F600}\uD83D\ude00\t$", "éA😀😀\t", ["é"]),
        (r"^[\b]$", "\x08", ["b"]),
        (r"^[\w-.]$", "-", ["/", " "]),
        (r"^\p{Lu}\P{L}[^\p{L}x]$", "Ä11", ["ä11", "Äa1", "Ä1é"]),
        ("(?i)^straße$", "STRAßE", ["STRASSE"]),
        ("^(?s:.).$", "\n\t", ["\t\n"]),
        ("(?is)^a.$", "A\n", ["A"]),
        ("^(?i:a)b$", "Ab", ["AB"]),
        ("^(?<year>a)(?P<day>b)$", "ab", ["a"]),
        ("^a{b,1}{$", "a{b,1}{", ["ab"]),
        ("^(a|b$)", "ac", ["cb", "bc"]),
        (EMAIL, "a.b'c@d-.ef", [".a@b.cd", "a..b@c.de", "a.@b.cd", "a'@b.cd", "a@b..cd", "a@b.c", "@b.cd"]),
    ],
)
def test_constructs_have_the_meaning_of_ecma_262(pattern, found, other):
    assert is_found(pattern, found)
    assert not any(is_found(pattern, text) for text in other)


# Each as ECMA-262 and as Python write it, and a text for it.
CHARS = [(char, char, char) for char in 'a&/~ é😀"']
ESCAPED = [(f"\\{char}", f"\\{char}", char) for char in "\\.-[]^$/{}()*+?|&~"]
ESCAPED += [(r"\x2d", r"\-", "-"), (r"\u00e9", "é", "é"), (r"\uD83D\uDE00", "😀", "😀"), (r"\n", r"\n", "\n")]
SPACE = "\\t-\\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
SETS = [(r"\d", "0-9", "5"), (r"\w", "0-9A-Z_a-z", "b"), (r"\s", SPACE, "\u2028")]
OUTSIDE = [(ours, f"[{python}]", text) for ours, python, text in SETS]
OUTSIDE += [(ours.upper(), f"[^{python}]", "%") for ours, python, _ in SETS]
OUTSIDE += [(".", "[^\n\r\u2028\u2029]", "x"), (r"\p{Ll}", "[a-zé]", "é"), ("-", "-", "-")]
OUTSIDE += [(char, f"\\{char}", char) for char in "{]}"] + CHARS + ESCAPED
# Python reads && in a class as we do, but warns of it.
INSIDE = [(char, f"\\{char}", char) for char in '&/~ "é😀.$[(|'] + ESCAPED + SETS
RANGES = [("+--", r"\+-\-", ","), ("a-c", "a-c", "b"), (" -~", " -~", "~"), (r"!-\x26", "!-&", "%")]
RANGES += [("&-~", "&-~", "*")]
ALPHABET = "aAbc019_-&/~ .é😀\"\\[]^$(){}*+?|,\n\u2028x%'"


def joined(parts):
    return tuple("".join(texts) for texts in zip(*parts, strict=True)) or ("", "", "")


@st.composite
def classes(draw):
    ours, python, text = joined(draw(st.lists(st.sampled_from(INSIDE + RANGES), min_size=1, max_size=4)))
    negation, hyphen = draw(st.sampled_from(["", "^"])), draw(st.sampled_from(["", "-"]))
    return f"[{negation}{ours}{hyphen}]", f"[{negation}{python}{hyphen and chr(92) + hyphen}]", (hyphen + text)[0]


def repeated(atoms):
    marks = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "+?"])
    return st.tuples(atoms, marks).map(
        lambda found: (found[0][0] + found[1], found[0][1] + found[1], found[0][2] * (1 + (found[1] == "{2}")))
    )


def alternatives(items):
    branches = st.lists(st.lists(repeated(items), max_size=3).map(joined), min_size=1, max_size=3)
    return branches.map(lambda found: (*("|".join(part[side] for part in found) for side in (0, 1)), found[0][2]))


GROUPS = st.recursive(
    st.sampled_from(OUTSIDE) | classes(),
    lambda items: alternatives(items).map(lambda found: (f"({found[0]})", f"({found[1]})", found[2])),
    max_leaves=6,
)


@st.composite
def patterns(draw):
    branches = []
    for _ in range(draw(st.integers(1, 2))):
        ours, python, text = draw(alternatives(GROUPS))
        start, end = draw(st.sampled_from([("^", "$"), ("^", ""), ("", "$"), ("", "")]))
        branches.append((f"{start}({ours}){end}", rf"{start}({python}){end and chr(92) + 'Z'}", text))
    return *("|".join(part[side] for part in branches) for side in (0, 1)), branches[0][2]


# Python's reader tries every way to match: longer texts might take for ever.
@settings(max_examples=50, deadline=None)
@given(patterns(), st.lists(st.text(ALPHABET, max_size=6), max_size=3))
def test_a_pattern_allows_the_texts_that_a_reader_of_regular_expressions_finds(pattern, texts):
    ours, python, sample = pattern
    for text in [*texts, sample[:8], f"x{sample[:8]}x"]:
        assert is_found(ours, text) == bool(re.search(python, text))
        assert is_matched(ours, text) == bool(re.fullmatch(python, text))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("a\\", "ends in a backslash"),
        ("[a", "no end"),
        ("[a\\", "ends in a backslash"),
        ("[z-a]", "wrong order"),
        ("a{2,1}", "wrong order"),
        ("*a", "nothing that"),
        ("a**", "repetition of a repetition"),
        ("a{2}{3}", "repetition of a repetition"),
        ("(a", "unclosed"),
        ("a)", "without"),
        ("(" * 101, "more than 100 groups"),
        ("a" * 5001, "at most 5000 characters"),
        ("a{100001}", "more than 100000"),
        ("((ab){100}c){1000}", "more than 100000"),
        ("(?:[a-z]{50001}){2}", "more than 100000"),
        ("a?" * 2001, "more than 2000 optional"),
    ],
)
def test_malformed_or_large_pattern_is_refused(pattern, text):
    for read in (search_pattern, whole_pattern):
        with pytest.raises(InvalidRequest, match=f"^p: .*{text}") as caught:
            read(pattern, "p")
        assert not isinstance(caught.value, Unsupported)


def test_every_property_that_is_read_is_known_to_llguidance():
    categories = "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf"
    words = "Letter Mark Number Punctuation Symbol Alphabetic Lowercase Uppercase White_Space ASCII Any ID_Start"
    words += " ID_Continue Emoji Emoji_Component Emoji_Presentation Extended_Pictographic"
    scripts = ["Latin", "Greek", "Cyrillic", "Arabic", "Hebrew", "Han", "Hiragana", "Katakana", "Hangul", "Thai"]
    names = [*categories.split(), *words.split(), *(f"{key}={name}" for key in ("Script", "sc") for name in scripts)]
    assert is_matched("|".join(rf"\p{{{name}}}|\P{{{name}}}x" for name in names), "é")


@pytest.mark.parametrize(
    "pattern",
    [
        *["\0", r"\0", r"\x00", r"\u0000", r"\u{0}", r"[\0]", r"[]", r"[^]", r"[]a]", r"\ud800", r"\u{110000}"],
        *[r"\01", r"\pL", r"\p{Foo}", r"\e", r"\Aa", r"a\Z", r"(?=a)", r"(?!a)", r"(?<=a)b", r"(?<!a)b", r"\bword"],
        *[r"a\B", r"(a)\1", r"(?<n>a)\k<n>", r"(?>a)", r"(?m:a)", r"(?x)a", "a++", "a{2}+", "a{,3}", "a^b", "a$b"],
        *["(^a)?", "x(a|^b)", "^*"],
    ],
)
def test_construct_that_is_not_enforced_exactly_is_named(pattern):
    for read in (search_pattern, whole_pattern):
        with pytest.raises(Unsupported, match=r"^p: "):
            read(pattern, "p")
