"""How long a text may be before it is tokenized: meanwhile, it has a core and memory to itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from model_repository.errors import InvalidRequest, PromptTooLong

MAX_BYTES = 500_000  # of a text that is only tokenized; at worst each is a token, and they take a second

type TextLimit = Callable[[str, str], None]  # takes the text and the input that carries it; raises


def window_limit(context_window: int, tokens: Iterable[bytes]) -> TextLimit:
    """Return the limit of a prompt: what not even the longest tokens could bring into the context window.

    Args:
        context_window: tokens of prompt and completion together.
        tokens: what each token may stand for in a text.
    """
    longest = max(map(len, tokens), default=0) or 1

    def check(text: str, field: str) -> None:
        num_tokens = -(-len(text.encode("utf-8", "surrogatepass")) // longest)
        if num_tokens > context_window:
            sizes = f"the prompt has at least {num_tokens} tokens"
            raise PromptTooLong(f"{sizes}: the context window is {context_window} tokens", field)

    return check


def check_num_bytes(text: str, field: str) -> None:
    """Refuse a text that is too long to be only tokenized.

    Raises:
        InvalidRequest: it is.
    """
    num_bytes = len(text.encode("utf-8", "surrogatepass"))
    if num_bytes > MAX_BYTES:
        raise InvalidRequest(f"{num_bytes} bytes: at most {MAX_BYTES} are tokenized", field)
