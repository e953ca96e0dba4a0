"""The files that hold a checkpoint's weights: all that the index names, and each tensor once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from build_engines.errors import BuildError
from build_engines.llama_cpp.shards import find_tensors
from build_engines.weight_files import weight_files
from tests.build_engines.tiny_checkpoint import random_weights, write_checkpoint


@pytest.mark.parametrize("num_shards", [1, 2, 3])
def test_every_tensor_is_found_in_its_file(num_shards: int, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, num_shards=num_shards)
    tensors = find_tensors(checkpoint)
    assert {name: tensor.shape for name, tensor in tensors.items()} == {
        name: weight.shape for name, weight in random_weights().items()
    }
    assert {tensor.path for tensor in tensors.values()} == set(weight_files(checkpoint))
    assert len(weight_files(checkpoint)) == num_shards


def test_files_that_are_not_the_checkpoints_are_left_alone(tmp_path: Path) -> None:
    """As an adapter, or the same weights in another layout."""
    checkpoint = write_checkpoint(tmp_path, num_shards=2)
    shutil.copyfile(checkpoint / "model-00001-of-00002.safetensors", checkpoint / "consolidated.safetensors")
    assert checkpoint / "consolidated.safetensors" not in weight_files(checkpoint)
    assert len(find_tensors(checkpoint)) == len(random_weights())


def remove_all(folder: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()


def remove_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()


def remove_shard(folder: Path) -> None:
    (folder / "model-00002-of-00003.safetensors").unlink()


def repeat_shard(folder: Path) -> None:
    shutil.copyfile(folder / "model-00001-of-00003.safetensors", folder / "model-00002-of-00003.safetensors")


def cut_shard(folder: Path) -> None:
    path = folder / "model-00003-of-00003.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def replace_in_index(old: str, new: str) -> Callable[[Path], None]:
    def replace(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        path.write_text(path.read_text().replace(old, new))

    return replace


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_all, r"no model\.safetensors and no model\.safetensors\.index\.json"),
        (remove_index, r"no model\.safetensors and no model\.safetensors\.index\.json"),
        (remove_shard, r"index\.json: names model-00002-of-00003\.safetensors, which the folder lacks"),
        (
            repeat_shard,
            r"tensor lm_head\.weight: both in model-00001-of-00003\.safetensors and in model-00002-of-00003",
        ),
        (cut_shard, r"model-00003-of-00003\.safetensors: not a safetensors file"),
        (replace_in_index("lm_head.weight", "head.weight"), r"tensor head\.weight: not in model-00001-of-00003"),
        (replace_in_index('"weight_map"', '"map"'), "weight_map: expected an object"),
        (replace_in_index('"model-00001', '"../model-00001'), r"='\.\./model-00001.*expected the name of a file in"),
    ],
    ids=["no files", "no index", "no shard", "doubled", "cut", "not in the shard", "no map", "elsewhere"],
)
def test_shards_that_are_not_whole_are_refused(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, num_shards=3)
    damage(checkpoint)
    with pytest.raises(BuildError, match=message):
        find_tensors(checkpoint)
