"""How much of a prompt is computed beside sequences that decode, so that these keep their pace."""

from __future__ import annotations

MIN_TOKENS = 16  # fewer would make a prompt wait for ever
MAX_TOKENS = 512
FIRST_TOKENS = 64  # until steps have shown what tokens cost
_MEMORY = 0.8  # of what was measured before, at each measurement


class PrefillPace:
    """Learns from the steps what decoding and prompt tokens take.

    A step may take twice as long with prompt tokens as without; `min_stall_s` longer in any case, which no reader sees.
    Much less would serve nobody: a step's own share, to read all weights once, is paid for each piece of a prompt.

    Args:
        min_stall_s: so much longer a step may always take.
    """

    def __init__(self, min_stall_s: float = 0.02) -> None:
        self._min_stall_s = min_stall_s
        self._decode_s: float | None = None
        self._token_s: float | None = None

    def took(self, num_prompt_tokens: int, duration_s: float) -> None:
        """Note how long a step took. One with only a few prompt tokens says nothing clear."""
        if num_prompt_tokens == 0:
            self._decode_s = _blended(self._decode_s, duration_s)
        elif num_prompt_tokens >= MIN_TOKENS:
            own_s = max(0.0, duration_s - (self._decode_s or 0.0))
            self._token_s = _blended(self._token_s, own_s / num_prompt_tokens)

    @property
    def max_tokens(self) -> int:
        """How many prompt tokens may be in one step with sequences that decode."""
        if not self._token_s:
            return FIRST_TOKENS
        stall_s = max(self._min_stall_s, self._decode_s or 0.0)
        return max(MIN_TOKENS, min(int(stall_s / self._token_s), MAX_TOKENS))


def _blended(before: float | None, now: float) -> float:
    return now if before is None else _MEMORY * before + (1 - _MEMORY) * now
