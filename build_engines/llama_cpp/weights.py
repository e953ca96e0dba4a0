"""Tensors in safetensors files, read whole or in pieces of rows, as numpy arrays: BF16, which numpy lacks, as F32."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from build_engines.errors import BuildError, UnsupportedCheckpoint

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)  # the import is what makes safetensors able to read it
_NUM_BYTES = {"F16": 2, "F32": 4, "F64": 8, "BF16": 2}
_MAX_PIECE_BYTES = 64 << 20

type Tensor = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where a tensor is, and what its file's header says of it."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: str  # safetensors' word for it

    def read(self) -> Tensor:
        """Return the whole tensor.

        Raises:
            BuildError: the file cannot be read any more.
        """
        with _opened(self.path) as file:
            return _readable(file.get_tensor(self.name))

    def read_pieces(self) -> Iterator[Tensor]:
        """Yield the tensor from its first row to its last, at most 64 MiB of the file at a time.

        Raises:
            BuildError: the file cannot be read any more.
        """
        row_bytes = _NUM_BYTES[self.dtype] * math.prod(self.shape[1:])
        num_rows = max(1, _MAX_PIECE_BYTES // row_bytes)
        for start in range(0, self.shape[0], num_rows):
            with _opened(self.path) as file:  # anew: what was read of a mapped file stays in memory until it is closed
                rows = file.get_slice(self.name)[start : min(start + num_rows, self.shape[0])]
            yield _readable(rows)


def list_tensors(path: Path) -> list[StoredTensor]:
    """Return what a file holds, by its header.

    Raises:
        BuildError: not such a file.
        UnsupportedCheckpoint: a tensor that is no floating-point number of 16 bits or more.
    """
    tensors = []
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            header = file.get_slice(name)
            shape, dtype = tuple(header.get_shape()), header.get_dtype()
            if dtype not in _NUM_BYTES:
                raise UnsupportedCheckpoint(f"{path}: tensor {name}: {dtype}, expected {', '.join(_NUM_BYTES)}")
            tensors.append(StoredTensor(path=path, name=name, shape=shape, dtype=dtype))
    return tensors


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except FileNotFoundError as exc:
        raise BuildError(f"{path}: no such file") from exc
    except OSError as exc:
        raise BuildError(f"{path}: cannot be read ({exc})") from exc
    except SafetensorError as exc:
        raise BuildError(f"{path}: not a safetensors file ({exc})") from exc


def _readable(tensor: Tensor) -> Tensor:
    return tensor.astype(np.float32) if tensor.dtype == _BFLOAT16 else tensor
