"""A file of an artifact that is a hard link to a user's file, which its owner may change at any time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedFile:
    """The user's file as it was at the build."""

    source: str  # its path
    inode: int
    size_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, source: Path) -> Self:
        stat = source.stat()
        return cls(source=str(source.absolute()), inode=stat.st_ino, size_bytes=stat.st_size, mtime_ns=stat.st_mtime_ns)

    def why_changed(self, path: Path) -> str | None:
        """Return how the link at `path` differs from the build, and the remedy; None if it does not."""
        try:
            now = path.stat()
        except FileNotFoundError:  # its artifact is removed; a running model has it open
            return None
        except OSError as exc:
            return f"{self.source}: cannot be read: {exc.strerror}"
        # Another inode: the artifact was copied, and the copy is the server's own.
        if now.st_ino != self.inode or (now.st_size, now.st_mtime_ns) == (self.size_bytes, self.mtime_ns):
            return None
        sizes = f"{now.st_size:,} bytes, at the build {self.size_bytes:,}"
        return f"{self.source}: changed since the model was built ({sizes}): build the model again"


def why_changed(linked: Mapping[str, LinkedFile], folder: Path) -> str | None:
    """Return the first change of the linked files of an artifact, by their names in its folder."""
    reasons = (file.why_changed(folder / name) for name, file in linked.items())
    return next(filter(None, reasons), None)
