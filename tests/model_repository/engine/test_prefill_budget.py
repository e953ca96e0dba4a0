"""The number of prompt tokens in a step with decoding sequences."""

from __future__ import annotations

import pytest

from model_repository.engine.prefill_budget import FIRST_TOKENS, MAX_TOKENS, MIN_TOKENS, PrefillBudget


def prefill_budget(*steps: tuple[int, float]) -> PrefillBudget:
    """Return a budget after steps with these numbers of prompt tokens and durations."""
    item = PrefillBudget()
    for num_prompt_tokens, duration_s in steps:
        item.record(num_prompt_tokens, duration_s)
    return item


def test_the_first_budget_is_a_guess() -> None:
    assert prefill_budget().max_tokens == FIRST_TOKENS
    assert prefill_budget((0, 0.3)).max_tokens == FIRST_TOKENS


@pytest.mark.parametrize(("token_us", "expected"), [(100, 200), (200, 100), (1000, 20)])
def test_short_steps_may_grow_by_an_unnoticeable_time(token_us: float, expected: int) -> None:
    assert prefill_budget((0, 0.001), (128, 0.001 + 128 * token_us * 1e-6)).max_tokens == pytest.approx(expected, abs=1)


def test_long_steps_may_double() -> None:
    """A model of a billion parameters on two cores: 0.26 s for a step, 7 ms more for each prompt token."""
    assert prefill_budget((0, 0.26), (64, 0.26 + 64 * 0.007)).max_tokens == pytest.approx(0.26 / 0.007, abs=1)


def test_there_are_bounds() -> None:
    assert prefill_budget((128, 3.0)).max_tokens == MIN_TOKENS
    assert prefill_budget((128, 1e-6)).max_tokens == MAX_TOKENS
    assert prefill_budget((0, 0.2), (128, 0.1)).max_tokens == FIRST_TOKENS  # an impossible measurement is ignored


def test_a_few_prompt_tokens_do_not_measure_the_cost_of_a_token() -> None:
    assert prefill_budget((1, 0.05), (MIN_TOKENS - 1, 0.05)).max_tokens == FIRST_TOKENS


def test_one_slow_step_is_not_believed_and_many_are() -> None:
    usual = [(100, 0.01)] * 10
    assert prefill_budget(*usual, (100, 0.02)).max_tokens > 0.8 * prefill_budget(*usual).max_tokens
    assert prefill_budget(*usual, *[(100, 0.02)] * 20).max_tokens == pytest.approx(
        prefill_budget((100, 0.02)).max_tokens, rel=0.05
    )
