"""The tensors of a checkpoint, wherever its files have them."""

from __future__ import annotations

from pathlib import Path

from build_engines.errors import BuildError
from build_engines.llama_cpp.weights import StoredTensor, list_tensors
from build_engines.weight_files import INDEX_FILE, SINGLE_FILE, read_index, weight_files


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
    for name, file_name in read_index(folder).items():
        if name not in tensors or tensors[name].path.name != file_name:
            raise BuildError(f"{folder / INDEX_FILE}: tensor {name}: not in {file_name}")
