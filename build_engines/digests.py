"""The sha256 of files, each read once: of a large file it is remembered, and holds while the file is the same one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from build_engines.progress import Progress

FILE_NAME = ".digests.json"  # beside the artifacts

_SMALLEST_BYTES = 64 << 20  # a smaller file is read again sooner than looked up
_BLOCK_BYTES = 16 << 20
_NUM_READERS = 8  # one reads about 1 GB/s, less than a disk of a GPU machine


@dataclass(slots=True)
class Digests:
    """Digests of files, remembered by inode: a hard link into an artifact is the file that was read as its source.

    Size, time of the last change and inode tell a file that was written again. They do not tell one that the disk has
    damaged: `verify` reads everything.
    """

    path: Path | None = None  # None: nothing is remembered
    smallest_bytes: int = _SMALLEST_BYTES
    _known: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def beside(cls, artifact_dir: Path, smallest_bytes: int = _SMALLEST_BYTES) -> Digests:
        """Load what is remembered for the artifacts of a folder, given one of them."""
        path = artifact_dir.parent / FILE_NAME
        known = None
        with contextlib.suppress(OSError, ValueError):  # nothing yet, or not ours: then files are read
            known = json.loads(path.read_text(encoding="utf-8"))
        return cls(path, smallest_bytes, known if isinstance(known, dict) else {})

    def of_all(self, files: Mapping[str, Path]) -> dict[str, str]:
        """Return the digest of each file, by its name; large ones that must be read show their progress."""
        total = sum(path.stat().st_size for path in self._unread(files.values()))
        with (
            Progress.shown("computing digests", total if total >= self.smallest_bytes else 0) as progress,
            ThreadPoolExecutor(_NUM_READERS) as readers,
        ):
            # When this is interrupted, the files that are not begun are not read.
            return dict(zip(files, readers.map(lambda path: self.of(path, progress), files.values()), strict=True))

    def of(self, path: Path, progress: Progress | None = None) -> str:
        """Return the sha256 of a file, in hexadecimal."""
        identity = _identity(path)
        if identity in self._known:
            return self._known[identity]
        digest = _read_digest(path, progress)
        if path.stat().st_size >= self.smallest_bytes and _identity(path) == identity:
            self._remember(identity, digest)
        return digest

    def _unread(self, paths: Iterable[Path]) -> list[Path]:
        return [path for path in paths if _identity(path) not in self._known]

    def _remember(self, identity: str, digest: str) -> None:
        with self._lock:
            self._known[identity] = digest
            if self.path is None:
                return
            with contextlib.suppress(OSError):  # artifacts may be on a volume that is only read
                self.path.parent.mkdir(parents=True, exist_ok=True)
                aside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
                aside.write_text(json.dumps(self._known, indent=1), encoding="utf-8")
                aside.replace(self.path)


def _identity(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"


def _read_digest(path: Path, progress: Progress | None) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            if progress is not None:
                progress.add(len(block))
    return digest.hexdigest()
