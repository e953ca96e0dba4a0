"""Tensors out of safetensors files, as numpy arrays: BF16, which numpy lacks, as F32."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from build_engines.errors import BuildError, UnsupportedCheckpoint

_FLOATS = ("F16", "F32", "F64")


def read_tensors(path: Path) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yield each tensor of a file with its name.

    Raises:
        BuildError: not such a file.
        UnsupportedCheckpoint: a tensor that is no floating-point number of 16 bits or more.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 (not a mapping)
                dtype = file.get_slice(name).get_dtype()
                if dtype in _FLOATS:
                    yield name, file.get_tensor(name)
                elif dtype == "BF16":
                    yield name, _read_bfloat16(path, name)
                else:
                    raise UnsupportedCheckpoint(f"{path}: tensor {name}: {dtype}, expected {', '.join(_FLOATS)}, BF16")
    except FileNotFoundError as exc:
        raise BuildError(f"{path}: no such file") from exc
    except SafetensorError as exc:
        raise BuildError(f"{path}: not a safetensors file ({exc})") from exc


def _read_bfloat16(path: Path, name: str) -> npt.NDArray[np.float32]:
    """Read the upper halves of F32 numbers: 8 bytes of header length, the header in JSON, the numbers."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(length))[name]
        start, end = entry["data_offsets"]
        file.seek(8 + length + start)
        upper = np.frombuffer(file.read(end - start), dtype="<u2")
    numbers: npt.NDArray[np.float32] = (upper.astype(np.uint32) << 16).view(np.float32)
    return numbers.reshape(entry["shape"])
