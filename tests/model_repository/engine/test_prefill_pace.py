"""How much of a prompt a step takes beside sequences that decode."""

from __future__ import annotations

import pytest

from model_repository.engine.prefill_pace import FIRST_TOKENS, MAX_TOKENS, MIN_TOKENS, PrefillPace


def pace(*steps: tuple[int, float]) -> PrefillPace:
    """Return one that has seen steps of so many prompt tokens and seconds."""
    item = PrefillPace(min_stall_s=0.02)
    for num_prompt_tokens, duration_s in steps:
        item.took(num_prompt_tokens, duration_s)
    return item


def test_before_anything_is_known_it_is_a_guess() -> None:
    assert pace().max_tokens == FIRST_TOKENS
    assert pace((0, 0.3)).max_tokens == FIRST_TOKENS


@pytest.mark.parametrize(("token_us", "expected"), [(100, 200), (200, 100), (1000, 20)])
def test_where_steps_are_short_a_prompt_may_take_what_nobody_sees(token_us: float, expected: int) -> None:
    assert pace((0, 0.001), (128, 0.001 + 128 * token_us * 1e-6)).max_tokens == pytest.approx(expected, abs=1)


def test_where_steps_are_long_they_get_twice_as_long() -> None:
    """A model of a billion parameters on two cores: 0.26 s for a step, 7 ms more for each prompt token."""
    assert pace((0, 0.26), (64, 0.26 + 64 * 0.007)).max_tokens == pytest.approx(0.26 / 0.007, abs=1)


def test_a_prompt_alone_tells_what_its_tokens_cost() -> None:
    assert pace((100, 0.01)).max_tokens == 200


def test_there_are_bounds() -> None:
    assert pace((128, 3.0)).max_tokens == MIN_TOKENS
    assert pace((128, 1e-6)).max_tokens == MAX_TOKENS
    assert pace((0, 0.2), (128, 0.1)).max_tokens == FIRST_TOKENS  # what cannot be is not believed


def test_a_few_prompt_tokens_say_nothing_of_what_a_token_costs() -> None:
    assert pace((1, 0.05), (MIN_TOKENS - 1, 0.05)).max_tokens == FIRST_TOKENS


def test_one_slow_step_is_not_believed_and_many_are() -> None:
    usual = [(100, 0.01)] * 10
    assert pace(*usual, (100, 0.02)).max_tokens > 0.8 * pace(*usual).max_tokens
    assert pace(*usual, *[(100, 0.02)] * 20).max_tokens == pytest.approx(pace((100, 0.02)).max_tokens, rel=0.05)
