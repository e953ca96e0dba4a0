"""llama.cpp's binding, loaded with a setting that the libraries below it read only then."""

from __future__ import annotations

import os
from pathlib import Path

# The number of times that OpenMP's threads poll for work before they sleep, read as the library loads. The threads wait
# for each other a hundred times in a step, for microseconds: to wake up takes longer than to compute. But polling uses
# up a thread's fair part of its core. Once another process is busy, the kernel then lets the thread wait for a
# millisecond, a hundred times in a step. This number is 25 to 50 microseconds; the usual one is 300 times as large.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from cyllama.llama import llama_cpp as llama

from model_repository.contract.engine_file import note_share

__all__ = ["llama", "load_weights"]


def load_weights(path: Path) -> llama.LlamaModel:
    """Load a GGUF file, or a split one by its first part, and tell the progress.

    Raises:
        OSError, RuntimeError, ValueError or MemoryError: it does not load, or the load was stopped.
    """
    params = llama.LlamaModelParams()
    params.progress_callback = note_share
    return llama.LlamaModel(str(path), params)
