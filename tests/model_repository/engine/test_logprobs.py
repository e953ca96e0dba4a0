"""Log probabilities from logits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_repository.engine.logprobs import token_logprob


def test_a_token_that_cannot_be_drawn_is_infinitely_unlikely() -> None:
    assert token_logprob([0.0, -math.inf], 1, 1).logprob == -math.inf


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.integers(0, 20), st.data())
def test_the_most_likely_come_first_and_of_equal_ones_the_lower_ids(
    logits: list[int], num_top: int, data: st.DataObject
) -> None:
    token_id = data.draw(st.integers(0, len(logits) - 1))
    drawn = token_logprob([float(item) for item in logits], token_id, num_top, is_ranked=True)
    expected = sorted(range(len(logits)), key=lambda index: (-logits[index], index))
    assert [index for index, _ in drawn.top] == expected[:num_top]
    assert drawn.rank == 1 + expected.index(token_id)
    assert dict(drawn.top).get(token_id, drawn.logprob) == drawn.logprob
    assert drawn.logprob == pytest.approx(logits[token_id] - np.log(np.exp(logits).sum()))
