import pytest

from model_repository.errors import InvalidRequest, Unsupported
from model_repository.guides.pattern import rust_pattern


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^a{2,3}(b|c)*$", "^a{2,3}(b|c)*$"),
        ("[a-z]", r"[a-z&&[^\x00]]"),
        ('[^"]', r'[^\x00"]'),
        (r"[[&~\]]", r"[\[\&\~\]&&[^\x00]]"),
        (r"[\0-\x1f]", r"[\x00-\x1f&&[^\x00]]"),
        (r"\p{Cc}\Pl\d", r"[\p{Cc}&&[^\x00]][\Pl&&[^\x00]]\d"),
        ("a{,x}{", "a{,x}{"),
    ],
)
def test_pattern_means_the_same_to_rust_but_for_nul(pattern, expected):
    assert rust_pattern(pattern, "p") == expected


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("a\\", "ends in a backslash"),
        ("[a", "no end"),
        ("[a\\", "ends in a backslash"),
        ("[+--]", "hyphen"),
        ("a" * 5001, "at most 5000 characters"),
        ("a{100001}", "more than 100000"),
        ("((ab){100}c){1000}", "more than 100000"),
        ("[a-z]{50001}{2}", "more than 100000"),
        ("a?" * 2001, "more than 2000 optional"),
        ("a{0,1}" * 700 + "b*" * 300 + "c" * 200, None),
        ("(a{300}){300}", None),
    ],
)
def test_size_of_a_pattern_is_limited(pattern, text):
    if text is None:
        assert rust_pattern(pattern, "p") == pattern
        return
    with pytest.raises(InvalidRequest, match=f"^p: .*{text}"):
        rust_pattern(pattern, "p")


@pytest.mark.parametrize("pattern", ["\0", r"\0", r"\x00", r"\u0000", r"\x{0}", "[]", "[^]"])
def test_nul_and_nothing_are_not_enforced(pattern):
    with pytest.raises(Unsupported, match=r"^p: "):
        rust_pattern(pattern, "p")
