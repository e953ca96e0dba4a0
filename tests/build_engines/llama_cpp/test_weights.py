"""Tensors of safetensors files, and of checkpoints with one file or with an index."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from build_engines.errors import BuildError, UnsupportedCheckpoint
from build_engines.llama_cpp import weights
from build_engines.llama_cpp.weights import find_tensors, list_tensors
from build_engines.weight_files import weight_files
from tests.build_engines.tiny_checkpoint import random_weights, write_checkpoint


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


def test_position_ids_of_older_checkpoints_are_left_out(tmp_path: Path) -> None:
    """As in all-MiniLM-L6-v2: they are of a type that no weights have."""
    buffer = np.arange(3).reshape(1, 3)
    save_file({"a": np.ones(2, np.float16), "bert.embeddings.position_ids": buffer}, tmp_path / "file")
    assert list(read_tensors(tmp_path / "file")) == ["a"]


@pytest.mark.parametrize("content", [b"", b"1234", b"\xff" * 100])
def test_another_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BuildError, match="file: not a safetensors file"):
        read_tensors(tmp_path / "file")


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


def test_a_file_that_became_unreadable_is_named(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "file", "F16", bytes(8))
    tensor = list_tensors(path)[1]
    path.unlink()
    with pytest.raises(BuildError, match="file: no such file"):
        list(tensor.read_pieces())


def test_files_that_are_not_the_checkpoints_are_left_alone(tmp_path: Path) -> None:
    """As an adapter, or the same weights in another layout."""
    checkpoint = write_checkpoint(tmp_path, num_shards=2)
    shutil.copyfile(checkpoint / "model-00001-of-00002.safetensors", checkpoint / "consolidated.safetensors")
    assert checkpoint / "consolidated.safetensors" not in weight_files(checkpoint)
    assert len(find_tensors(checkpoint)) == len(random_weights())


INDEX = "model.safetensors.index.json"
SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


def remove(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink()


def cut_shard(folder: Path) -> None:
    (folder / SHARDS[2]).write_bytes((folder / SHARDS[2]).read_bytes()[:-100])


def replace_in_index(folder: Path, old: str, new: str) -> None:
    (folder / INDEX).write_text((folder / INDEX).read_text().replace(old, new))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: remove(folder, INDEX, *SHARDS),
            r"no model\.safetensors and no model\.safetensors\.index\.json",
        ),
        (lambda folder: remove(folder, INDEX), r"no model\.safetensors and no model\.safetensors\.index\.json"),
        (
            lambda folder: remove(folder, SHARDS[1]),
            r"index\.json: names model-00002-of-00003\.safetensors, which the folder lacks",
        ),
        (
            lambda folder: shutil.copyfile(folder / SHARDS[0], folder / SHARDS[1]),
            r"tensor lm_head\.weight: both in model-00001-of-00003\.safetensors and in model-00002-of-00003",
        ),
        (cut_shard, r"model-00003-of-00003\.safetensors: not a safetensors file"),
        (
            lambda folder: replace_in_index(folder, "lm_head.weight", "head.weight"),
            r"tensor head\.weight: not in model-00001-of-00003",
        ),
        (lambda folder: replace_in_index(folder, '"weight_map"', '"map"'), "weight_map: expected an object"),
        (
            lambda folder: replace_in_index(folder, '"model-00001', '"../model-00001'),
            r"='\.\./model-00001.*expected the name of a file in",
        ),
    ],
    ids=["no files", "no index", "no shard", "doubled", "cut", "not in the shard", "no map", "elsewhere"],
)
def test_incomplete_shards_are_refused(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, num_shards=3)
    damage(checkpoint)
    with pytest.raises(BuildError, match=message):
        find_tensors(checkpoint)
