"""The store of a user: the artifacts of the home, by the names of their models."""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from build_engines.artifact import Manifest, why_incomplete
from build_engines.errors import ArtifactInvalid, NotStored
from build_engines.model_source import model_id_of
from build_engines.progress import size_of
from model_repository.contract.tensors import ensemble_to_model_id
from model_repository.system.command_parser import did_you_mean
from model_repository.system.running_servers import RunningServer, running_servers

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An artifact of the store."""

    folder: Path
    manifest: Manifest | None  # None: not readable
    error: str = ""
    server: RunningServer | None = None  # that serves it

    @property
    def model_id(self) -> str:
        """The id of its model; of an unreadable artifact that in the name of the folder."""
        if self.manifest is not None:
            return self.manifest.model_id
        return ensemble_to_model_id(self.folder.name.rpartition("-")[0] or self.folder.name)

    @property
    def size_bytes(self) -> int:
        """The size of its files."""
        return size_of(self.folder)[0]


def stored(home: Path) -> Iterator[Stored]:
    """Yield the artifacts of a home by their folders. Names with a dot are unfinished builds."""
    servers = list(running_servers(home))
    for folder in sorted(home.glob("artifacts/[!.]*/")):
        try:
            found = Stored(folder=folder, manifest=Manifest.load(folder))
        except ArtifactInvalid as exc:
            found = Stored(folder=folder, manifest=None, error=str(exc))
        serving = (each for each in servers if _serves(each, found))
        yield dataclasses.replace(found, server=next(serving, None))


def _serves(server: RunningServer, artifact: Stored) -> bool:
    if server.artifacts:
        return artifact.folder.resolve().name in server.artifacts
    return artifact.model_id in server.models


def newest_complete(homes: Iterable[Path]) -> Path | None:
    """Return the newest artifact that this version serves, of the first home with one; None: there is none."""
    for home in homes:
        found: list[tuple[int, Path]] = []
        for each in stored(home):
            if each.manifest is not None and (reason := why_incomplete(each.folder)) is None:
                found.append((each.manifest.created, each.folder.resolve()))
            else:
                logger.info("not used    %s", each.error or reason)
        if found:
            return max(found)[1]
    return None


def link(path: Path, target: Path) -> None:
    """Make a path a relative link, in place of a former one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    aside.symlink_to(os.path.relpath(target.resolve(), path.parent.resolve()))
    aside.replace(path)


def find(home: Path, name: str) -> list[Stored]:
    """Return the artifacts of a model, which are several if it was built with several options.

    Args:
        name: the name of a folder of the store, or of a model, as `build` takes it.

    Raises:
        NotStored: names the nearest one.
    """
    artifacts = list(stored(home))
    for text in (name, model_id_of(name)):
        if named := [each for each in artifacts if text in (each.folder.name, each.model_id)]:
            return named
    hint = did_you_mean(name, (each.model_id for each in artifacts))
    raise NotStored(f"{name}: not in the store{hint or '; `conch list` shows the models'}")
