"""The largest text that is tokenized: tokenizing occupies a core and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from model_repository.contract.rules import prompt_too_long
from model_repository.errors import InvalidRequest, PromptTooLong

MAX_BYTES = 500_000  # a text has at most as many tokens, which take a second

type TextLimit = Callable[[str, str], None]  # gets the text and the name of its input; raises


def longest_token(tokens: Iterable[bytes]) -> int:
    """Return the bytes of the longest token.

    Args:
        tokens: the longest text of each token.
    """
    return max(map(len, tokens), default=0) or 1


def window_limit(context_window: int, longest: int) -> TextLimit:
    """Return the limit of a prompt: even the longest tokens must be able to fit it into the context window."""

    def check(text: str, field: str) -> None:
        num_tokens = -(-len(text.encode("utf-8", "surrogatepass")) // longest)
        if num_tokens > context_window:
            raise PromptTooLong(prompt_too_long(context_window, f"at least {num_tokens} tokens"), field)

    return check


def truncated_limit(fits: TextLimit) -> TextLimit:
    """Return the limit of a prompt that is truncated: one that cannot fit must be short enough to be only tokenized."""

    def check(text: str, field: str) -> None:
        try:
            fits(text, field)
        except PromptTooLong:
            check_num_bytes(text, field)

    return check


def check_num_bytes(text: str, field: str) -> None:
    """Refuse a text that is too long to be only tokenized."""
    num_bytes = len(text.encode("utf-8", "surrogatepass"))
    if num_bytes > MAX_BYTES:
        raise InvalidRequest(f"{num_bytes} bytes: at most {MAX_BYTES} are tokenized", field)
