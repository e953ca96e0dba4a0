"""Where the checkpoint lies, and how its files are replaced while others read them."""

import os
from collections.abc import Mapping
from pathlib import Path

CHECKPOINT = Path(__file__).parent / "checkpoint"


def replace_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write each file beside its place, then rename all: a reader never sees half a file."""
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / f".{name}.new").write_bytes(content)
    for name in contents:
        os.replace(folder / f".{name}.new", folder / name)
