"""CUDA's libraries that are packages of Python. The system's loader does not look into these."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path

_NAMES = ("libcudart.so.12", "libcublasLt.so.12", "libcublas.so.12")  # each after those that it needs


def open_cuda_libraries() -> None:
    """Open those that are installed: libraries that need one of this name then get it. Others are the system's."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    for name in _NAMES:
        for path in [path for folder in folders for path in folder.glob(f"*/lib/{name}")][:1]:
            ctypes.CDLL(str(path))
