"""How many sequences, and of how many tokens, the memory of a CPU machine holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SHARE = 0.8  # part of the memory for weights and KV caches
_CACHE_SHARE = 0.25  # part for KV caches: other programs want memory too
_FEW_SEQUENCES = 4  # the window shrinks before there are fewer
_QUICK_CACHE_BYTES = 1 << 30  # llama.cpp fills a KV cache when it makes it: this much takes less than a second
_WINDOW_STEP = 256  # tokens
_MIN_WINDOW = 2048  # also if it does not fit: the estimate may be too high


@dataclass(frozen=True, slots=True)
class ModelDemand:
    """Sequences and window of a model on a machine with enough memory."""

    weight_bytes: int
    bytes_per_token: int  # KV cache; 0: unknown
    num_sequences: int
    window: int  # tokens
    is_fixed: bool = False  # the user has chosen the number of sequences

    @property
    def can_shrink(self) -> bool:
        """Whether it may get less."""
        return not self.is_fixed and self.bytes_per_token > 0

    @property
    def cache_bytes(self) -> int:
        """The size of the KV cache."""
        return self.num_sequences * self.window * self.bytes_per_token

    def text(self, num_sequences: int, window: int) -> str:
        """Describe the memory of the model with these numbers of sequences and tokens."""
        num_bytes = self.weight_bytes + num_sequences * window * self.bytes_per_token
        return f"{num_sequences} x {window:,} tokens, {num_bytes / 1e9:.1f} GB with the weights"


def fit(models: Sequence[ModelDemand], memory_bytes: int, num_cores: int) -> list[tuple[int, int]]:
    """Return sequences and window of each model, at most the demanded ones.

    The models that can shrink share equally the memory beside all weights and the KV caches of the others. Each has as
    many sequences as cores, which gain little by more, or as its KV cache is quickly made for.
    """
    fixed_bytes = sum(model.weight_bytes + (0 if model.can_shrink else model.cache_bytes) for model in models)
    free_bytes = int(max(0, min(SHARE * memory_bytes - fixed_bytes, _CACHE_SHARE * memory_bytes)))
    share = free_bytes // max(1, sum(model.can_shrink for model in models))
    return [
        _fitted(model, share, num_cores) if model.can_shrink else (model.num_sequences, model.window)
        for model in models
    ]


def _fitted(model: ModelDemand, free_bytes: int, num_cores: int) -> tuple[int, int]:
    num_tokens, num_quick_tokens = free_bytes // model.bytes_per_token, _QUICK_CACHE_BYTES // model.bytes_per_token
    num_useful = max(num_cores, num_quick_tokens // model.window)
    num_sequences = min(model.num_sequences, max(_FEW_SEQUENCES, min(num_tokens // model.window, num_useful)))
    window = num_tokens // num_sequences // _WINDOW_STEP * _WINDOW_STEP
    least = min(_MIN_WINDOW, model.window)
    if window < least:
        num_sequences = max(1, min(num_sequences, num_tokens // least))
    return num_sequences, min(model.window, max(window, least))
