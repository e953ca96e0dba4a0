"""The marks of a prompt's beginnings."""

from __future__ import annotations

from itertools import pairwise

import pytest

from model_repository.contract import marks
from model_repository.contract.marks import ENDS, MARK_BYTES, first_marks, marks_of, num_known, split, united

KEY = b"k"
TEXT = bytes(range(256)) * 100


def test_a_mark_stands_for_all_bytes_before_its_end() -> None:
    whole = split(marks_of(KEY, TEXT))
    assert len(whole) == sum(end <= len(TEXT) for end in ENDS)
    for number, end in enumerate(ENDS[: len(whole)]):
        changed = bytearray(TEXT)
        changed[end - 1] ^= 1
        assert num_known(split(marks_of(KEY, bytes(changed))), set(whole)) == number
    assert marks_of(KEY, TEXT + b"more").startswith(b"".join(whole))
    assert marks_of(KEY, TEXT[: ENDS[0] - 1]) == b""


def test_who_has_another_key_knows_no_mark() -> None:
    assert not set(split(marks_of(KEY, TEXT))) & set(split(marks_of(b"other", TEXT)))


def test_the_resolution_is_a_twentieth_of_the_length_and_a_long_prompt_has_few_marks() -> None:
    assert all(end - before <= max(256, before / 20) for before, end in pairwise(ENDS))
    assert len(marks_of(KEY, bytes(10_000_000))) == 175 * MARK_BYTES


@pytest.mark.parametrize(("share", "num_bytes"), [(0.0, 0), (0.5, ENDS[-1] / 2), (1.0, ENDS[-1]), (2.0, ENDS[-1])])
def test_a_share_of_a_prompt_has_the_marks_of_no_more(share: float, num_bytes: float) -> None:
    whole = b"m" * MARK_BYTES * len(ENDS)
    assert len(first_marks(whole, share)) == MARK_BYTES * sum(end <= num_bytes for end in ENDS)
    assert first_marks(b"", share) == b""


def test_an_answer_has_each_mark_once_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (marks_of(KEY, TEXT[:start] + bytes(9000)) for start in (0, 3000, 6000))
    assert set(split(united([first, second, first]))) == set(split(first + second))
    monkeypatch.setattr(marks, "MAX_KEPT_BYTES", 2 * len(first))
    assert united([first, second, third]) == united([first, second, third, third])
    assert len(united([first, second, third])) == 2 * len(first)
