"""Tensors out of safetensors files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from build_engines.errors import BuildError, UnsupportedCheckpoint
from build_engines.llama_cpp import weights
from build_engines.llama_cpp.weights import list_tensors


def write_raw(path: Path, dtype: str, numbers: bytes) -> Path:
    """Write a tensor [2, n] of a type that numpy lacks, behind another one."""
    entries = {
        "first": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]},
        "second": {"dtype": dtype, "shape": [2, 2], "data_offsets": [2, 2 + len(numbers)]},
    }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header + np.array([7], dtype=np.float16).tobytes() + numbers)
    return path


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: tensor.read() for tensor in list_tensors(path)}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_tensors_come_as_they_are(dtype: type[np.floating], tmp_path: Path) -> None:
    save_file({"a": np.arange(6, dtype=dtype).reshape(2, 3), "b": np.ones(2, dtype=dtype)}, tmp_path / "file")
    tensors = read_tensors(tmp_path / "file")
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {"a": [[0, 1, 2], [3, 4, 5]], "b": [1, 1]}
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(dtype)}


def test_bfloat16_comes_as_float32(tmp_path: Path) -> None:
    """Most checkpoints have it, and their conversion ended in a TypeError of numpy."""
    upper_halves = (np.array([1, -2.5, 3e38, 2**-120], dtype=np.float32).view(np.uint32) >> 16).astype("<u2")
    tensors = read_tensors(write_raw(tmp_path / "file", "BF16", upper_halves.tobytes()))
    assert tensors["first"].tolist() == [7]
    assert tensors["second"].dtype == np.float32
    assert tensors["second"] == pytest.approx(np.array([[1, -2.5], [3e38, 2**-120]]), rel=2**-8)
    assert tensors["second"][0].tolist() == [1, -2.5]


def test_another_type_is_refused(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "file", "F8_E4M3", bytes(4))
    with pytest.raises(UnsupportedCheckpoint, match="tensor second: F8_E4M3, expected F16, F32, F64, BF16"):
        read_tensors(path)


@pytest.mark.parametrize("content", [b"", b"1234", b"\xff" * 100])
def test_another_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BuildError, match="file: not a safetensors file"):
        read_tensors(tmp_path / "file")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="none: no such file"):
        read_tensors(tmp_path / "none")


@pytest.mark.parametrize("max_piece_bytes", [1, 6, 13, 24, 1000])
@pytest.mark.parametrize("shape", [(5, 3), (7,)])
def test_pieces_are_the_whole_in_order(
    shape: tuple[int, ...], max_piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_MAX_PIECE_BYTES", max_piece_bytes)
    whole = np.arange(np.prod(shape), dtype=np.float16).reshape(shape)
    save_file({"a": whole}, tmp_path / "file")
    pieces = list(list_tensors(tmp_path / "file")[0].read_pieces())
    row_bytes = whole[0].nbytes
    assert max(piece.nbytes for piece in pieces) <= max(row_bytes, max_piece_bytes)
    assert np.array_equal(np.concatenate(pieces), whole)


def test_pieces_of_bfloat16_come_as_float32(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "file", "BF16", np.full(4, 0x3FC0, dtype="<u2").tobytes())
    (piece,) = list_tensors(path)[1].read_pieces()
    assert piece.dtype == np.float32
    assert piece.tolist() == [[1.5, 1.5], [1.5, 1.5]]


def test_a_file_that_became_unreadable_is_named(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "file", "F16", bytes(8))
    tensor = list_tensors(path)[1]
    path.unlink()
    with pytest.raises(BuildError, match="file: no such file"):
        list(tensor.read_pieces())
