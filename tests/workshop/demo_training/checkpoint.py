"""Where the demo model lies, and how its files are replaced while others read them."""

import os
from collections.abc import Mapping
from pathlib import Path

DEMO = Path(__file__).parents[3] / "build_engines" / "demo"
CHECKPOINT = DEMO / "checkpoint"


def replace_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write each file beside its place, then rename all: a reader never sees half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / f".{name}.new").write_bytes(content)
    for name in contents:
        os.replace(folder / f".{name}.new", folder / name)
