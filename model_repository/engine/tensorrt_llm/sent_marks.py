"""The marks of the prompts that TensorRT-LLM was sent last. It does not say which prompts are in its KV cache."""

from __future__ import annotations


class SentMarks:
    """The marks of the last prompts that fit the KV cache together. Only one thread may add some."""

    def __init__(self) -> None:
        self._num_tokens: dict[bytes, int] = {}  # of each prompt, by its marks; the newest is last
        self._sum = 0

    def add(self, marks: bytes, num_tokens: int, max_tokens: int) -> None:
        """Note a prompt.

        Args:
            max_tokens: of the KV cache.
        """
        if not marks:
            return
        for before in [each for each in self._num_tokens if marks.startswith(each)]:  # the same conversation
            self._sum -= self._num_tokens.pop(before)
        self._sum += num_tokens
        self._num_tokens[marks] = num_tokens
        while self._sum > max_tokens:
            self._sum -= self._num_tokens.pop(next(iter(self._num_tokens)))

    def newest_first(self) -> list[bytes]:
        """Return the marks of each prompt, from any thread."""
        return list(self._num_tokens)[::-1]
