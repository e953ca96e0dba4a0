"""How many sequences, and of how many tokens, the memory of a CPU machine holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_SHARE = 0.8  # of the memory, for weights and KV caches
_CACHE_SHARE = 0.25  # for KV caches, which are filled at the start: other programs want memory too
_FEW_SEQUENCES = 4  # the window shrinks before there are fewer
_WINDOW_STEP = 256  # tokens
_MIN_WINDOW = 2048  # also if it does not fit: the estimate may be too high


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one model would have in a machine with enough memory."""

    weight_bytes: int
    bytes_per_token: int  # of the KV cache; 0: unknown, and nothing is changed
    num_sequences: int
    window: int  # tokens


def fit(models: Sequence[Wanted], memory_bytes: int) -> list[tuple[int, int]]:
    """Return sequences and window of each model, at most the wanted ones. The models share the memory equally."""
    beside_weights = _SHARE * memory_bytes - sum(model.weight_bytes for model in models)
    free_bytes = int(max(0, min(beside_weights, _CACHE_SHARE * memory_bytes)))
    return [_fitted(model, free_bytes // len(models)) for model in models]


def _fitted(model: Wanted, free_bytes: int) -> tuple[int, int]:
    if model.bytes_per_token == 0:
        return model.num_sequences, model.window
    num_tokens = free_bytes // model.bytes_per_token
    num_sequences = min(model.num_sequences, max(_FEW_SEQUENCES, num_tokens // model.window))
    window = num_tokens // num_sequences // _WINDOW_STEP * _WINDOW_STEP
    if window < _MIN_WINDOW:
        num_sequences = max(1, min(num_sequences, num_tokens // _MIN_WINDOW))
    return num_sequences, min(model.window, max(window, _MIN_WINDOW))
