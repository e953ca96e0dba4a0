"""The sha256 of files. Digests of large files are kept, and are valid while the file does not change."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from build_engines.progress import Progress

FILE_NAME = ".digests.json"  # a file beside the artifacts

_SMALLEST_BYTES = 64 << 20  # smaller files are read again
_BLOCK_BYTES = 16 << 20
_NUM_READERS = 8  # one reader makes about 1 GB/s, less than a disk of a GPU machine


@dataclass(slots=True)
class Digests:
    """Digests of files, kept by inode: a hard link in an artifact is the same file as its source.

    Size, time of the last change and inode detect a rewritten file, but not a damaged disk: `verify` reads all files.
    """

    path: Path | None = None  # None: nothing is kept
    smallest_bytes: int = _SMALLEST_BYTES
    _known: dict[str, str] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def beside(cls, artifact_dir: Path, smallest_bytes: int = _SMALLEST_BYTES) -> Digests:
        """Load the digests that are kept in the folder of an artifact."""
        path = artifact_dir.parent / FILE_NAME
        known = None
        with contextlib.suppress(OSError, ValueError):  # missing or damaged: then files are read
            known = json.loads(path.read_text(encoding="utf-8"))
        return cls(path, smallest_bytes, known if isinstance(known, dict) else {})

    def of_all(self, files: Mapping[str, Path]) -> dict[str, str]:
        """Return the digest of each file by its name. Unread large files show their progress."""
        total = sum(path.stat().st_size for path in files.values() if _identity(path) not in self._known)
        with (
            Progress("computing digests", total if total >= self.smallest_bytes else 0) as progress,
            ThreadPoolExecutor(_NUM_READERS) as readers,
        ):
            # After an interrupt, no further file is read.
            return dict(zip(files, readers.map(lambda path: self.of(path, progress), files.values()), strict=True))

    def of(self, path: Path, progress: Progress | None = None) -> str:
        """Return the sha256 of a file, in hexadecimal."""
        identity = _identity(path)
        if identity in self._known:
            return self._known[identity]
        digest = _read_digest(path, progress)
        if path.stat().st_size >= self.smallest_bytes and _identity(path) == identity:
            self._keep(identity, digest)
        return digest

    def _keep(self, identity: str, digest: str) -> None:
        with self._lock:
            self._known[identity] = digest
            if self.path is None:
                return
            # Artifacts may be on a read-only volume, or on one of several containers, whose processes have equal ids.
            with contextlib.suppress(OSError):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                aside = self.path.with_name(f"{self.path.name}.{secrets.token_hex(8)}")
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
                progress.update(len(block))
    return digest.hexdigest()
