"""How many sequences, and of how many tokens, the memory of a CPU machine holds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from build_engines.replica_memory import ReplicaMemory
from build_engines.sequence_memory import SequenceMemory
from model_repository.system.model_memory import MODEL_SHARE

SHARE = 0.8  # part of the memory for weights and KV caches
_CACHE_SHARE = 0.25  # part for KV caches: other programs want memory too
_FEW_SEQUENCES = 4  # the window shrinks before there are fewer
_QUICK_CACHE_BYTES = 1 << 30  # llama.cpp fills a KV cache when it makes it: this much takes less than a second
_WINDOW_STEP = 256  # tokens
_SHARE_STEP_BYTES = 1 << 20
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
    num_replicas: int = 1
    is_pinned: bool = False
    is_on_demand: bool = False
    replica: ReplicaMemory | None = None  # None: unknown

    @property
    def can_shrink(self) -> bool:
        """Whether it may get less."""
        return not self.is_fixed and self.sequence_memory is not None and not self.sequence_memory.step_bytes

    @property
    def cache_bytes(self) -> int:
        """The size of the KV cache, 0 if it is unknown; of a model that embeds that of its steps."""
        return self._model_bytes(self.num_sequences, self.window) - self.weight_bytes

    @property
    def least_bytes(self) -> int:
        """The memory of a replica with the fewest sequences and the shortest window."""
        return self.replica_bytes(*self.least)

    @property
    def least(self) -> tuple[int, int]:
        """The fewest sequences and the shortest window."""
        return (1, min(_MIN_WINDOW, self.window)) if self.can_shrink else (self.num_sequences, self.window)

    def replica_bytes(self, num_sequences: int, window: int) -> int:
        """Return the memory of a replica; without that of its processes if this is unknown."""
        if self.replica is None:
            return self._model_bytes(num_sequences, window)
        return self.replica.num_bytes(num_sequences, window)

    def fitted(self, num_sequences: int, window: int) -> ModelDemand:
        """Return it with these numbers alone."""
        return replace(self, num_sequences=num_sequences, window=window, is_fixed=True, num_spare=0)

    def _model_bytes(self, num_sequences: int, window: int) -> int:
        memory = self.sequence_memory
        caches_bytes = 0 if memory is None else memory.step_bytes + num_sequences * memory.num_bytes(window)
        return self.weight_bytes + caches_bytes

    def text(self, num_sequences: int, window: int) -> str:
        """Describe the memory of the model with these numbers of sequences and tokens; empty if it is unknown."""
        if self.sequence_memory is None:
            return ""
        size = f"{self._model_bytes(num_sequences, window) / 1e9:.1f} GB with the weights"
        prompts = "prompts of" if self.sequence_memory.step_bytes else f"{num_sequences} x"
        return f"{prompts} {window:,} tokens, {size}"


def fit_loaded[Key](models: Mapping[Key, ModelDemand], memory_bytes: int, num_cores: int) -> dict[Key, tuple[int, int]]:
    """Return sequences and window of each model beside those that are loaded at the same time.

    The pinned models and those that are loaded at the start are fitted together, if all can be. Each other model is
    fitted beside the pinned ones alone, which are never unloaded for it.

    Args:
        memory_bytes: see `fit`.
    """
    together = {key: model for key, model in models.items() if model.is_pinned or not model.is_on_demand}
    if sum(model.num_replicas * model.least_bytes for model in together.values()) > MODEL_SHARE * memory_bytes:
        together = {key: model for key, model in together.items() if model.is_pinned}
    fits = _fit_replicas(together, memory_bytes, num_cores)
    pinned = {key: model.fitted(*fits[key]) for key, model in together.items() if model.is_pinned}
    for key, model in models.items():
        if key not in fits:
            fits[key] = _fit_replicas(pinned | {key: model}, memory_bytes, num_cores)[key]
    return fits


def _fit_replicas[Key](
    models: Mapping[Key, ModelDemand], memory_bytes: int, num_cores: int
) -> dict[Key, tuple[int, int]]:
    engines = [key for key, model in models.items() for _ in range(model.num_replicas)]
    return dict(zip(engines, fit([models[key] for key in engines], memory_bytes, num_cores), strict=True))


def fit(models: Sequence[ModelDemand], memory_bytes: int, num_cores: int) -> list[tuple[int, int]]:
    """Return sequences and window of each model, at most the demanded ones.

    The models that can shrink or have spare sequences share equally the memory beside all weights and the KV caches of
    the others. Each that can shrink has as many sequences as cores, which gain little by more, or as its KV cache is
    quickly made for. They get less if the replicas with their processes would hold more than models may.

    Args:
        memory_bytes: of the machine. Models may hold MODEL_SHARE of it.
    """
    fixed_bytes = sum(model.weight_bytes + (0 if model.can_shrink else model.cache_bytes) for model in models)
    free_bytes = int(max(0, min(SHARE * memory_bytes - fixed_bytes, _CACHE_SHARE * memory_bytes)))
    share = free_bytes // max(1, sum(model.can_shrink or model.num_spare > 0 for model in models))

    def total_bytes(share: int) -> int:
        return sum(model.replica_bytes(*_fitted(model, share, num_cores)) for model in models)

    if total_bytes(share) > MODEL_SHARE * memory_bytes:
        smaller = range(0, share + _SHARE_STEP_BYTES, _SHARE_STEP_BYTES)
        share = smaller[max(0, bisect_right(smaller, MODEL_SHARE * memory_bytes, key=total_bytes) - 1)]
    return [_fitted(model, share, num_cores) for model in models]


def _fitted(model: ModelDemand, free_bytes: int, num_cores: int) -> tuple[int, int]:
    if model.can_shrink:
        return _shrunk(model, free_bytes, num_cores)
    return model.num_sequences + _spare(model, free_bytes), model.window


def _spare(model: ModelDemand, free_bytes: int) -> int:
    if model.sequence_memory is None or not model.num_spare:
        return model.num_spare
    return min(model.num_spare, free_bytes // model.sequence_memory.num_bytes(model.window))


def _shrunk(model: ModelDemand, free_bytes: int, num_cores: int) -> tuple[int, int]:
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
