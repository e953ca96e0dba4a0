"""Tensors of safetensors files as numpy arrays, whole or in pieces of rows. BF16 becomes F32."""

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
from build_engines.weight_files import INDEX_FILE, SINGLE_FILE, read_index, weight_files

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)  # safetensors needs the import for BF16
_NUM_BYTES = {"F16": 2, "F32": 4, "F64": 8, "BF16": 2}
_MAX_PIECE_BYTES = 64 << 20
_BUFFER = ".position_ids"  # BERT checkpoints of earlier transformers have it: the whole numbers from 0 on

type Tensor = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor's file, name, shape and type."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: str  # safetensors' name

    def read(self) -> Tensor:
        """Return the whole tensor.

        Raises:
            BuildError: the file cannot be read.
        """
        with _opened(self.path) as file:
            return _readable(file.get_tensor(self.name))

    def read_pieces(self) -> Iterator[Tensor]:
        """Yield the tensor from its first row to its last, at most 64 MiB of the file at a time.

        Raises:
            BuildError: the file cannot be read.
        """
        row_bytes = _NUM_BYTES[self.dtype] * math.prod(self.shape[1:])
        num_rows = max(1, _MAX_PIECE_BYTES // row_bytes)
        for start in range(0, self.shape[0], num_rows):
            # Opened again: the pages of a mapped file stay in memory until it is closed.
            with _opened(self.path) as file:
                rows = file.get_slice(self.name)[start : min(start + num_rows, self.shape[0])]
            yield _readable(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRows(StoredTensor):
    """Some rows of a tensor, in any order."""

    rows: tuple[int, ...]

    def read_pieces(self) -> Iterator[Tensor]:
        """Yield the rows together.

        Raises:
            BuildError: the file cannot be read.
        """
        with _opened(self.path) as file:
            stored = file.get_slice(self.name)
            yield _readable(np.concatenate([stored[row : row + 1] for row in self.rows]))


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedRows(StoredTensor):
    """The embedding of all tokens twice: of the first text of a pair, and of the second.

    llama.cpp adds the first row of the token types to every token. To the second half of the tokens it thereby adds the
    second row.
    """

    tokens: StoredTensor
    types: StoredTensor

    def read_pieces(self) -> Iterator[Tensor]:
        """Yield the rows of the first half, and then of the second.

        Raises:
            BuildError: a file cannot be read.
        """
        types = self.types.read().astype(np.float32)
        yield from self.tokens.read_pieces()
        for piece in self.tokens.read_pieces():
            yield piece + (types[1] - types[0])


def list_tensors(path: Path) -> list[StoredTensor]:
    """Return the tensors of a file by its header, without a buffer that has no weights.

    Raises:
        BuildError: not a safetensors file.
        UnsupportedCheckpoint: a tensor is not of 16-bit or larger floating-point numbers.
    """
    tensors = []
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118 (not a mapping)
            if name.endswith(_BUFFER):
                continue
            header = file.get_slice(name)
            shape, dtype = tuple(header.get_shape()), header.get_dtype()
            if dtype not in _NUM_BYTES:
                raise UnsupportedCheckpoint(f"{path}: tensor {name}: {dtype}, expected {', '.join(_NUM_BYTES)}")
            tensors.append(StoredTensor(path=path, name=name, shape=shape, dtype=dtype))
    return tensors


def find_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return every tensor of a checkpoint by its name.

    Raises:
        BuildError: a file is missing or unreadable, or its tensors are not those of the index.
        UnsupportedCheckpoint: neither one file nor an index, or an unsupported type.
    """
    files = weight_files(folder)
    tensors: dict[str, StoredTensor] = {}
    for path in files:
        for tensor in list_tensors(path):
            if tensor.name in tensors:
                first = tensors[tensor.name].path.name
                raise BuildError(f"{folder}: tensor {tensor.name}: both in {first} and in {path.name}")
            tensors[tensor.name] = tensor
    if files != (folder / SINGLE_FILE,):
        _check_index(folder, tensors)
    return tensors


def _check_index(folder: Path, tensors: dict[str, StoredTensor]) -> None:
    for name, file_name in read_index(folder).items():
        if name not in tensors or tensors[name].path.name != file_name:
            raise BuildError(f"{folder / INDEX_FILE}: tensor {name}: not in {file_name}")


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
