"""The largest completion that fits the context window beside its prompt."""

from __future__ import annotations

from typing import Any

import pytest

from model_repository.contract.request import ContextOverflow, Params
from model_repository.contract.rules import fitting_max_tokens, num_kept_tokens
from model_repository.errors import InvalidRequest, PromptTooLong


def fitting(num_prompt_tokens: int, max_tokens: int, **others: Any) -> int:
    return fitting_max_tokens(Params(max_tokens=max_tokens, **others), num_prompt_tokens, 10, "messages")


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "expected"),
    [(3, 7, 7), (3, 6, 6), (3, 8, 7), (9, 100, 1), (10, 0, 0), (0, 0, 0)],
)
def test_max_tokens_is_lowered_to_the_room_that_the_prompt_leaves(
    num_prompt_tokens: int, max_tokens: int, expected: int
) -> None:
    assert fitting(num_prompt_tokens, max_tokens) == expected


# LiteLLM falls back to another model at the second sentence, other clients cut their messages at the first.
TOO_LONG = "the prompt is too long. This model's maximum context length is 10 tokens: "


@pytest.mark.parametrize("overflow", ContextOverflow)
@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "text"),
    [
        (10, 1, "the prompt has 10 tokens, and the completion needs at least one"),
        (11, 5, "the prompt has 11 tokens, and the completion needs at least one"),
        (11, 0, "the prompt has 11 tokens"),
    ],
)
def test_a_prompt_without_room_for_a_token_is_refused(
    num_prompt_tokens: int, max_tokens: int, text: str, overflow: ContextOverflow
) -> None:
    with pytest.raises(PromptTooLong) as caught:
        fitting(num_prompt_tokens, max_tokens, overflow=overflow)
    assert (caught.value.text, caught.value.field) == (TOO_LONG + text, "messages")


def test_a_completion_that_does_not_fit_is_refused_on_request() -> None:
    assert fitting(3, 7, overflow=ContextOverflow.ERROR) == 7
    with pytest.raises(PromptTooLong) as caught:
        fitting(3, 8, overflow=ContextOverflow.ERROR)
    assert caught.value.message() == (
        f"[context_length_exceeded] messages: {TOO_LONG}the prompt has 3 tokens, and the completion may have 8"
    )


def test_min_tokens_must_fit() -> None:
    assert fitting(3, 20, min_tokens=7) == 7
    with pytest.raises(InvalidRequest) as caught:
        fitting(3, 20, min_tokens=8)
    assert caught.value.message() == (
        "[invalid_value] min_tokens: "
        "8 do not fit: the context window is 10 tokens, and the prompt has 3 tokens, which leaves 7"
    )


@pytest.mark.parametrize(
    ("truncate_prompt_tokens", "max_tokens", "num_kept"),
    [(None, 4, 30), (3, 4, 3), (8, 4, 8), (40, 4, 30), (-1, 4, 6), (-1, 0, 10), (-1, 9, 1), (-1, 10, 9), (-1, 99, 9)],
)
def test_a_truncated_prompt_keeps_its_last_tokens(
    truncate_prompt_tokens: int | None, max_tokens: int, num_kept: int
) -> None:
    """-1 is vLLM's: the context window without `max_tokens`. One that fills the window has room for one token."""
    params = Params(truncate_prompt_tokens=truncate_prompt_tokens, max_tokens=max_tokens)
    assert num_kept_tokens(params, 30, 10) == num_kept
