"""Drafts of texts that repeat themselves."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from model_repository.engine.prompt_lookup import PromptLookup

PROMPT = tuple(range(100, 120))


def after(prompt: Sequence[int], *token_ids: int) -> PromptLookup:
    lookup = PromptLookup(prompt, 1000)
    for token_id in token_ids:
        lookup.append(token_id)
    return lookup


def test_a_text_without_repetitions_is_not_drafted() -> None:
    assert after(PROMPT, *range(200, 300)).draft(7) == []


def test_a_draft_is_as_long_as_the_guesses_that_were_right() -> None:
    assert after(PROMPT, 105, 106, 107).draft(7) == []
    assert after(PROMPT, 105, 106, 107, 108).draft(7) == [109]
    assert after(PROMPT, 105, 106, 107, 108, 109, 110).draft(7) == [111, 112, 113]
    assert after(PROMPT, 105, 106, 107, 108, 109, 110).draft(2) == [111, 112]
    assert after(PROMPT, 105, 106, 107, 108, 109, 110).draft(-1) == []


def test_a_wrong_guess_ends_the_drafts_until_another_one_was_right() -> None:
    assert after(PROMPT, 105, 106, 107, 108, 109, 7).draft(7) == []
    assert after(PROMPT, 105, 106, 107, 108, 109, 7, 112, 113, 114).draft(7) == []
    assert after(PROMPT, 105, 106, 107, 108, 109, 7, 112, 113, 114, 115).draft(7) == [116]


def test_the_latest_place_is_guessed_from() -> None:
    assert after((*PROMPT, 105, 106, 107, 7, 8), 105, 106, 107, 7).draft(7) == [8]


def test_a_short_text_that_repeats_itself_is_drafted_beyond_its_end() -> None:
    assert after((1,), *[2, 3, 1] * 5).draft(7) == [2, 3, 1, 2, 3, 1, 2]


def test_tokens_of_images_are_not_drafted() -> None:
    assert after((1, 2, 3, 4, 5, -(2**130)), 1, 2, 3, 4, 5).draft(7) == []
    assert after((-(2**130), 1, 2, 3, 4, 5, 6, -(2**130)), 1, 2, 3, 4, 5).draft(7) == [6]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=50))
def test_a_prompt_is_known_as_if_its_tokens_came_one_by_one(prompt: list[int]) -> None:
    assert (after(prompt)._places == after(prompt[:1], *prompt[1:])._places).all()
