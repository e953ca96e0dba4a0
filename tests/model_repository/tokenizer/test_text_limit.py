"""How long a text may be before it is tokenized."""

from __future__ import annotations

import pytest

from model_repository.contract.rules import prompt_too_long
from model_repository.errors import InvalidRequest, PromptTooLong
from model_repository.tokenizer.text_limit import MAX_BYTES, check_num_bytes, longest_token, window_limit


@pytest.mark.parametrize("text", ["", "a" * 30, "\u65e5" * 10, "\ud800" * 10])
def test_a_text_that_may_fit_the_window_is_accepted(text: str) -> None:
    window_limit(10, longest_token((b"", b"abc", b"ab")))(text, "messages")


@pytest.mark.parametrize(("text", "num_tokens"), [("a" * 31, 11), ("\u65e5" * 12, 12)])
def test_a_text_too_long_for_the_window_is_refused(text: str, num_tokens: int) -> None:
    with pytest.raises(PromptTooLong) as caught:
        window_limit(10, longest_token((b"", b"abc", b"ab")))(text, "messages")
    assert caught.value.text == prompt_too_long(10, f"at least {num_tokens} tokens")
    assert caught.value.field == "messages"


def test_a_text_that_is_only_tokenized_has_a_limit_of_its_own() -> None:
    # 800,000 combining marks, two bytes each, took longer than anybody waits.
    check_num_bytes("\u0301" * (MAX_BYTES // 2), "text_input")
    with pytest.raises(InvalidRequest, match="500001 bytes: at most 500000 are tokenized"):
        check_num_bytes("\u0301" * (MAX_BYTES // 2) + "a", "text_input")
