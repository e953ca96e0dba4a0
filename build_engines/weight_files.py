"""The files of a checkpoint's weights: one, or several with an index."""

from __future__ import annotations

from pathlib import Path

from build_engines.errors import BuildError, UnsupportedCheckpoint
from build_engines.json_files import read_json

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the files of a checkpoint's weights, all of which exist.

    Raises:
        BuildError: the index is malformed, or a file is missing.
        UnsupportedCheckpoint: neither one file nor an index.
    """
    if (folder / SINGLE_FILE).is_file():
        return (folder / SINGLE_FILE,)
    if not (folder / INDEX_FILE).is_file():
        raise UnsupportedCheckpoint(f"{folder}: no {SINGLE_FILE} and no {INDEX_FILE}")
    files = tuple(folder / name for name in sorted(set(read_index(folder).values())))
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise BuildError(f"{folder / INDEX_FILE}: names {', '.join(missing)}, which the folder lacks")
    return files


def read_index(folder: Path) -> dict[str, str]:
    """Return the name of the file of each tensor.

    Raises:
        BuildError: the index is malformed.
    """
    path = folder / INDEX_FILE
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BuildError(f"{path}: weight_map: expected an object with a file's name for each tensor")
    for name, file_name in weight_map.items():
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise BuildError(f"{path}: weight_map.{name}={file_name!r}: expected the name of a file in this folder")
    return weight_map
