"""How many sequences, and of how many tokens, the memory of a CPU machine holds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from build_engines.sequence_memory import SequenceMemory

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
    sequence_memory: SequenceMemory | None  # None: unknown
    num_sequences: int
    window: int  # tokens
    is_fixed: bool = False  # the user has chosen the number of sequences
    num_spare: int = 0  # further sequences of a fixed number, if their whole windows fit

    @property
    def can_shrink(self) -> bool:
        """Whether it may get less."""
        return not self.is_fixed and self.sequence_memory is not None and not self.sequence_memory.step_bytes

    @property
    def cache_bytes(self) -> int:
        """The size of the KV cache, 0 if it is unknown; of a model that embeds that of its steps."""
        memory = self.sequence_memory
        return 0 if memory is None else memory.step_bytes + self.num_sequences * memory.num_bytes(self.window)

    def text(self, num_sequences: int, window: int) -> str:
        """Describe the memory of the model with these numbers of sequences and tokens; empty if it is unknown."""
        if self.sequence_memory is None:
            return ""
        step_bytes = self.sequence_memory.step_bytes
        num_bytes = self.weight_bytes + step_bytes + num_sequences * self.sequence_memory.num_bytes(window)
        size = f"{num_bytes / 1e9:.1f} GB with the weights"
        return f"prompts of {window:,} tokens, {size}" if step_bytes else f"{num_sequences} x {window:,} tokens, {size}"


def fit(models: Sequence[ModelDemand], memory_bytes: int, num_cores: int) -> list[tuple[int, int]]:
    """Return sequences and window of each model, at most the demanded ones.

    The models that can shrink or have spare sequences share equally the memory beside all weights and the KV caches of
    the others. Each that can shrink has as many sequences as cores, which gain little by more, or as its KV cache is
    quickly made for.
    """
    fixed_bytes = sum(model.weight_bytes + (0 if model.can_shrink else model.cache_bytes) for model in models)
    free_bytes = int(max(0, min(SHARE * memory_bytes - fixed_bytes, _CACHE_SHARE * memory_bytes)))
    share = free_bytes // max(1, sum(model.can_shrink or model.num_spare > 0 for model in models))
    return [
        _fitted(model, share, num_cores)
        if model.can_shrink
        else (model.num_sequences + _spare(model, share), model.window)
        for model in models
    ]


def _spare(model: ModelDemand, free_bytes: int) -> int:
    if model.sequence_memory is None or not model.num_spare:
        return model.num_spare
    return min(model.num_spare, free_bytes // model.sequence_memory.num_bytes(model.window))


def _fitted(model: ModelDemand, free_bytes: int, num_cores: int) -> tuple[int, int]:
    sequence = model.sequence_memory
    assert sequence is not None
    whole_bytes, least = sequence.num_bytes(model.window), min(_MIN_WINDOW, model.window)
    num_useful = max(num_cores, _QUICK_CACHE_BYTES // whole_bytes)
    num_sequences = min(model.num_sequences, max(_FEW_SEQUENCES, min(free_bytes // whole_bytes, num_useful)))
    # The longest window that fits: the size grows with it, though not always by the same number of bytes.
    windows = range(0, model.window + _WINDOW_STEP, _WINDOW_STEP)
    window = _WINDOW_STEP * (bisect_right(windows, free_bytes // num_sequences, key=sequence.num_bytes) - 1)
    if window < least:
        num_sequences = max(1, min(num_sequences, free_bytes // sequence.num_bytes(least)))
    return num_sequences, min(model.window, max(window, least))
