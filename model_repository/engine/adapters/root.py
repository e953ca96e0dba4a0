"""The folder from which adapters are loaded while the model runs, with notes of the loaded ones."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from model_repository.contract.tensors import ensemble_to_model_id, model_id_to_ensemble
from model_repository.engine.adapters.folder import Adapter, read_adapter
from model_repository.errors import EngineFailed, InvalidRequest
from model_repository.system.lock_file import try_lock

logger = logging.getLogger(__name__)

NOTES = ".loaded"  # a folder below the root
_COPIES = "copies"  # a folder below a model's notes
_NOT_WRITABLE = "the root of adapters is not writable: loaded adapters are recorded there"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRoot:
    """Finds adapters below one folder, and nowhere else.

    A file of its own notes each loaded adapter, so that a restarted engine loads it again. Replicas of a model that
    share the folder share the notes: each replica gets the same orders.
    """

    folder: Path
    ensemble: str  # the model's
    runtime: str
    base: str  # identifies the weights of the model
    max_adapters: int  # loaded besides those of the artifact
    max_rank: int

    def find(self, name: str, source: str) -> Adapter:
        """Return an adapter, checked against the model.

        Args:
            name: clients will request it by this name.
            source: its folder, relative to the root or absolute.

        Raises:
            InvalidRequest: names the field, the value and the rule. Folders outside the root are never opened.
        """
        try:
            model_id_to_ensemble(name)
        except ValueError as exc:
            raise InvalidRequest(str(exc), "name") from exc
        if name == ensemble_to_model_id(self.ensemble):
            raise InvalidRequest(f"{name!r}: the model's own id", "name")
        folder = self._inside(source)
        relative = str(folder.relative_to(self.folder))
        try:
            if not folder.is_dir():
                raise InvalidRequest(f"{source!r}: there is no such folder below the root of adapters", "source")
            return read_adapter(folder, relative, runtime=self.runtime, base=self.base, max_rank=self.max_rank)
        except OSError as exc:
            logger.error("%s cannot be read: %s", folder, exc)
            raise InvalidRequest(f"{source!r}: cannot be read, see the engine's log", "source") from exc

    def note(self, name: str, adapter: Adapter) -> None:
        """Note that an adapter is loaded.

        Raises:
            EngineFailed: the folder cannot be written.
        """
        try:
            self._notes.mkdir(parents=True, exist_ok=True)
            aside = self._path_of(name).with_suffix(f".{secrets.token_hex(8)}")  # replicas write at the same time
            aside.write_text(json.dumps({"name": name, "source": adapter.source}), encoding="utf-8")
            aside.replace(self._path_of(name))
        except OSError as exc:
            logger.error("%s cannot be written: %s", self._notes, exc)
            raise EngineFailed(_NOT_WRITABLE) from exc

    def forget(self, name: str) -> None:
        """Remove the note of an adapter.

        Raises:
            EngineFailed: the folder cannot be written.
        """
        try:
            self._path_of(name).unlink(missing_ok=True)
        except OSError as exc:
            logger.error("%s cannot be written: %s", self._notes, exc)
            raise EngineFailed(_NOT_WRITABLE) from exc

    def copy(self, adapter: Adapter) -> Adapter:
        """Copy an adapter for a runtime that reads its files again later; return it with the copy as its folder.

        Each process has copies of its own: replicas that share the root load the same adapter at the same time.

        Raises:
            EngineFailed: the folder cannot be written.
            InvalidRequest: the files have changed since the adapter was found.
        """
        copies = self._notes / _COPIES
        try:
            copy = _own_folder(copies)[0] / adapter.key
            if not copy.is_dir():
                with tempfile.TemporaryDirectory(dir=copy.parent) as folder:
                    aside = Path(shutil.copytree(adapter.path, Path(folder, adapter.key), symlinks=True))
                    own = read_adapter(
                        aside, adapter.source, runtime=self.runtime, base=self.base, max_rank=self.max_rank
                    )
                    if own.key != adapter.key:
                        raise InvalidRequest(f"{adapter.source!r}: its files change while it is loaded", "source")
                    aside.rename(copy)
        except OSError as exc:
            logger.error("%s cannot be copied to %s: %s", adapter.path, copies, exc)
            raise EngineFailed(_NOT_WRITABLE) from exc
        return dataclasses.replace(adapter, path=copy)

    def remove_old_copies(self) -> None:
        """Remove the copies of processes that have ended, also of other containers and hosts."""
        for folder in (self._notes / _COPIES).glob("[!.]*"):
            # A missing file: another process removes the copies. One without locks: its process may run.
            with contextlib.suppress(OSError), _lock_path(folder).open("r+", encoding="utf-8") as lock:
                if try_lock(lock):
                    shutil.rmtree(folder, ignore_errors=True)
                    _lock_path(folder).unlink(missing_ok=True)

    def noted(self) -> Iterator[tuple[str, str]]:
        """Yield name and source of each noted adapter; an unreadable note is logged."""
        for path in sorted(self._notes.glob("*.json")):
            try:
                note = json.loads(path.read_text(encoding="utf-8"))
                yield str(note["name"]), str(note["source"])
            except (OSError, ValueError, LookupError, TypeError) as exc:
                logger.error("%s is no note of an adapter: %s", path, exc)

    @property
    def _notes(self) -> Path:
        return self.folder / NOTES / self.ensemble

    def _path_of(self, name: str) -> Path:
        return self._notes / f"{model_id_to_ensemble(name)}.json"

    def _inside(self, source: str) -> Path:
        """Return a folder below the root, symbolic links below it followed."""
        root = self.folder.resolve()
        try:
            folder = (root / source).resolve()
        except (OSError, ValueError, RuntimeError):  # a null byte, or a loop of links
            folder = root
        if folder == root or not folder.is_relative_to(root) or folder.is_relative_to(root / NOTES):
            raise InvalidRequest(f"{source!r}: must be a folder below the root of adapters", "source")
        return self.folder / folder.relative_to(root)


@functools.cache
def _own_folder(copies: Path) -> tuple[Path, TextIO]:
    """Make a folder for the copies of this process, and lock its file until the process ends."""
    folder = copies / secrets.token_hex(8)
    copies.mkdir(parents=True, exist_ok=True)
    lock = _lock_path(folder).open("w", encoding="utf-8")
    with contextlib.suppress(OSError):  # a file system without locks: the copies stay
        try_lock(lock)
    folder.mkdir()  # after the lock: other processes remove folders with a free lock
    return folder, lock


def _lock_path(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")
