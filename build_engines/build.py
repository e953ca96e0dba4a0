"""Builds the artifact of a spec: one builder at a time, written aside, sealed."""

from __future__ import annotations

import errno
import glob
import logging
import time
from pathlib import Path
from typing import Any, Protocol

import msgspec

from build_engines import artifact
from build_engines.artifact import Contents, Manifest
from build_engines.digests import Digests
from build_engines.errors import ArtifactInvalid, BuildError
from build_engines.lock import lock_path, locked, remove_leftovers
from build_engines.serving import Serving
from model_repository.contract.tensors import model_id_to_ensemble

logger = logging.getLogger(__name__)


class Spec(Protocol):
    """A model to build for one runtime: its sources, and the conversion of them."""

    @property
    def model_id(self) -> str:
        """The model's name for clients."""

    @property
    def runtime(self) -> str:
        """A name of the table of runtimes."""

    @property
    def serving(self) -> Serving:
        """Names and defaults, which are not part of the key."""

    def source_files(self) -> dict[str, Path]:
        """Return every source file by its name in the manifest."""

    def key_parts(self) -> dict[str, Any]:
        """Return the inputs of the build beside the model, the runtime and the sources."""

    def write(self, folder: Path, source: dict[str, str], lock: int) -> Contents:
        """Write the artifact's files, and return their part of the manifest.

        Args:
            folder: new and empty.
            source: the digests of the source files.
            lock: the descriptor of the artifact's lock, for child processes that outlive a killed builder.

        Raises:
            BuildError: one line that names the input and the rule.
        """

    def clean_up(self, source: dict[str, str]) -> None:
        """Remove intermediate files, after the artifact is in place."""


def build(spec: Spec, artifacts_dir: Path) -> Path:
    """Return the artifact of a spec, and build it if it is missing.

    Raises:
        BuildError: one line that names the input and the rule.
    """
    try:
        return _built(spec, artifacts_dir)
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # Python's error may name no file.
        raise BuildError(f"{artifacts_dir}: the disk is full: free some, or name another --home ({exc})") from exc


def _built(spec: Spec, artifacts_dir: Path) -> Path:
    digests = Digests.beside(artifacts_dir / "artifact")
    source_files = spec.source_files()
    source = digests.of_all(source_files)
    key = artifact.key_of(model_id=spec.model_id, runtime=spec.runtime, source=source, **spec.key_parts())
    target = artifacts_dir / f"{model_id_to_ensemble(spec.model_id)}-{key}"
    with locked(lock_path(target), f"builds {target.name}") as lock:
        remove_leftovers(target)
        reason = artifact.why_incomplete(target)
        if reason is None:
            artifact.serve_as(target, spec.serving)
        else:
            if (why := _why_again(target, reason)) is not None:
                logger.warning("%s is built again: %s", spec.model_id, why)
            with artifact.written_aside(target) as folder:
                contents = spec.write(folder, source, lock)
                manifest = Manifest(
                    model_id=spec.model_id,
                    runtime=spec.runtime,
                    created=int(time.time()),
                    source=source,
                    key=key,
                    serving=spec.serving,
                    **msgspec.structs.asdict(contents),
                )
                artifact.seal(folder, manifest, digests, source_files.values())
        spec.clean_up(source)
    return target


def _why_again(target: Path, reason: str) -> str | None:
    """Return why an artifact that is there cannot be served; None: the model has none.

    Args:
        reason: why the target cannot.
    """
    if target.exists():
        return reason
    ensemble = target.name.rpartition("-")[0]
    for older in sorted(target.parent.glob(f"{glob.escape(ensemble)}-{'[0-9a-f]' * artifact.KEY_LENGTH}")):
        try:
            Manifest.load(older)
        except ArtifactInvalid as exc:
            return str(exc)
    return None
