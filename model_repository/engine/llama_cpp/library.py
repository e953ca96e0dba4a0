"""llama.cpp's binding, loaded with a setting that the libraries below it read only then."""

from __future__ import annotations

import os
from collections.abc import Sequence

from model_repository.engine.llama_cpp.cuda_libraries import open_cuda_libraries
from model_repository.system.llama_build import usable_build

# The number of times that OpenMP's threads poll for work before they sleep, read as the library loads. The threads wait
# for each other a hundred times in a step, for microseconds: to wake up takes longer than to compute. But polling uses
# up a thread's fair part of its core. Once another process is busy, the kernel then lets the thread wait for a
# millisecond, a hundred times in a step. This number is 25 to 50 microseconds; the usual one is 300 times as large.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if (build := usable_build()) is not None and build.devices == "CUDA":
    open_cuda_libraries()

from cyllama.llama import llama_cpp as llama

__all__ = ["llama", "load_backends", "model_params"]

_SPLIT_NONE, _SPLIT_LAYERS = 0, 1  # llama.h: enum llama_split_mode


def load_backends() -> None:
    """Load the code for this processor and, of a build for graphics cards, their driver. Writes no log from then on."""
    llama.disable_logging()
    llama.ggml_backend_load_all()


def model_params(gpu_layers: int = 0, shares: Sequence[float] = ()) -> llama.LlamaModelParams:
    """Return the parameters of a load. If one device has all shares, llama.cpp does not use the others at all.

    Args:
        gpu_layers: the number of layers, from the last one, that devices compute.
        shares: of these layers, by device in the order of `list_devices`.
    """
    params = llama.LlamaModelParams()
    params.n_gpu_layers = gpu_layers
    sharing = [number for number, share in enumerate(shares) if share]
    params.split_mode = _SPLIT_LAYERS if gpu_layers and len(sharing) != 1 else _SPLIT_NONE
    params.main_gpu = (sharing or [0])[0] if gpu_layers else -1  # -1: no device, not even for buffers
    if len(sharing) > 1:
        params.tensor_split = list(shares)
    return params
