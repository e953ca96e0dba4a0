"""The number of prompt tokens that a step computes beside decoding sequences."""

from __future__ import annotations

MIN_TOKENS = 16  # fewer would never finish a prompt
MAX_TOKENS = 512
FIRST_TOKENS = 64  # the number until steps have been measured
_MIN_STALL_S = 0.02  # no client notices it
_MEMORY = 0.8  # the weight of earlier measurements


class PrefillBudget:
    """Learns from measured steps how long decoding and prompt tokens take.

    Prompt tokens may double the time of a step, or add _MIN_STALL_S. Smaller pieces of a prompt would help little: each
    step reads all weights once.
    """

    def __init__(self) -> None:
        self._decode_s: float | None = None
        self._token_s: float | None = None

    def record(self, num_prompt_tokens: int, duration_s: float) -> None:
        """Note the duration of a step. A step with only a few prompt tokens is ignored: its result is unclear."""
        if num_prompt_tokens == 0:
            self._decode_s = _blended(self._decode_s, duration_s)
        elif num_prompt_tokens >= MIN_TOKENS:
            own_s = max(0.0, duration_s - (self._decode_s or 0.0))
            self._token_s = _blended(self._token_s, own_s / num_prompt_tokens)

    @property
    def max_tokens(self) -> int:
        """The largest number of prompt tokens in a step with decoding sequences."""
        if not self._token_s:
            return FIRST_TOKENS
        stall_s = max(_MIN_STALL_S, self._decode_s or 0.0)
        return max(MIN_TOKENS, min(int(stall_s / self._token_s), MAX_TOKENS))


def _blended(before: float | None, now: float) -> float:
    return now if before is None else _MEMORY * before + (1 - _MEMORY) * now
