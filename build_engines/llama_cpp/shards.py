"""The files that hold a checkpoint's weights: one, or several with an index."""

from __future__ import annotations

from pathlib import Path

from build_engines.checkpoint import read_json
from build_engines.errors import BuildError, UnsupportedCheckpoint
from build_engines.llama_cpp.weights import StoredTensor, list_tensors

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the files that a checkpoint's weights are in; all of them are there.

    Raises:
        BuildError: the index is none, or names a file that is missing.
        UnsupportedCheckpoint: neither one file nor an index.
    """
    if (folder / SINGLE_FILE).is_file():
        return (folder / SINGLE_FILE,)
    if not (folder / INDEX_FILE).is_file():
        raise UnsupportedCheckpoint(f"{folder}: no {SINGLE_FILE} and no {INDEX_FILE}")
    files = tuple(folder / name for name in sorted(set(_read_index(folder).values())))
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise BuildError(f"{folder / INDEX_FILE}: names {', '.join(missing)}, which the folder lacks")
    return files


def find_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return every tensor of a checkpoint by its name.

    Raises:
        BuildError: a file is missing or unreadable, does not hold what the index says, or holds what another does.
        UnsupportedCheckpoint: neither one file nor an index, or a tensor of a type that is not converted.
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
    for name, file_name in _read_index(folder).items():
        if name not in tensors or tensors[name].path.name != file_name:
            raise BuildError(f"{folder / INDEX_FILE}: tensor {name}: not in {file_name}")


def _read_index(folder: Path) -> dict[str, str]:
    """Return the name of the file of each tensor."""
    path = folder / INDEX_FILE
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BuildError(f"{path}: weight_map: expected an object with a file's name for each tensor")
    for name, file_name in weight_map.items():
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise BuildError(f"{path}: weight_map.{name}={file_name!r}: expected the name of a file in this folder")
    return weight_map
