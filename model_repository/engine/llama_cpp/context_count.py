"""The number of llama.cpp's contexts in an engine, for the engine and for the memory that a build plans."""

from __future__ import annotations

from model_repository.engine.runtime import EngineConfig
from model_repository.errors import EngineFailed
from model_repository.system.cores import num_physical_cores

MAX_STEP_TOKENS = 512
# A model of up to this size fits the cores' caches, so each core computes a batch of its own at full speed. Larger
# weights come from memory, and all cores should use them while they are in the cache.
MAX_CACHED_WEIGHTS_BYTES = 64 << 20


def num_threads_of(config: EngineConfig) -> int:
    """Return the number of threads that compute."""
    return config.num_threads or num_physical_cores()


def usual_contexts(weights_bytes: int, num_threads: int, max_sequences: int) -> int:
    """Return the number of contexts that suits the model's size."""
    return min(num_threads, max_sequences) if weights_bytes <= MAX_CACHED_WEIGHTS_BYTES else 1


def num_contexts(config: EngineConfig) -> int:
    """Return the number of contexts: the option's, or one that suits the devices or the model's size.

    Raises:
        EngineFailed: the option is wrong.
    """
    given = config.options.get("contexts")
    if given is None and config.gpu_layers:
        return 1  # a device computes one step at a time
    if given is None:
        weights_bytes = sum(path.stat().st_size for path in config.artifact_dir.glob("*.gguf"))
        return usual_contexts(weights_bytes, num_threads_of(config), config.max_sequences)
    if not given.isdecimal() or not 1 <= int(given) <= config.max_sequences:
        raise EngineFailed(
            f"option contexts={given}: expected a whole number from 1 to {config.max_sequences}, the sequences"
        )
    return int(given)
