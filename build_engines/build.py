"""From a spec to an artifact: its key, one builder at a time, written aside, sealed."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from build_engines import artifact
from build_engines.artifact import Contents, Manifest
from build_engines.digests import Digests
from build_engines.errors import BuildError
from build_engines.lock import lock_path, locked, remove_leftovers
from build_engines.serving import Serving
from model_repository.contract.tensors import model_id_to_slug


class Spec(Protocol):
    """What to build for one runtime: it knows its sources, and how to make the files of an artifact of them."""

    @property
    def model_id(self) -> str:
        """As clients will name the model."""
        ...

    @property
    def runtime(self) -> str:
        """What executes it."""
        ...

    @property
    def serving(self) -> Serving:
        """How it is offered; another one needs no other artifact."""
        ...

    def source_files(self) -> dict[str, Path]:
        """Return every file that the artifact is made of, by the name that the manifest has for it."""
        ...

    def key_parts(self) -> dict[str, Any]:
        """Return what makes the artifact another one, beside the model, the runtime and the sources."""
        ...

    def write(self, folder: Path, source: dict[str, str], held: int) -> Contents:
        """Write the artifact's files; return what its manifest says of them.

        Args:
            folder: new and empty.
            source: the digests of the source files.
            held: the descriptor of the artifact's lock, for child processes that outlive a killed builder.

        Raises:
            BuildError: one line that names the input and the rule.
        """
        ...

    def clean_up(self, source: dict[str, str]) -> None:
        """Remove what building needed beside the sources, now that the artifact is in its place."""
        ...


def build(spec: Spec, artifacts_dir: Path) -> Path:
    """Return the artifact of a spec, building it unless it is there already.

    Raises:
        BuildError: one line that names the input and the rule.
    """
    with _full_disk_is_said(artifacts_dir):
        return _built(spec, artifacts_dir)


def _built(spec: Spec, artifacts_dir: Path) -> Path:
    digests = Digests.beside(artifacts_dir / "artifact")
    source = digests.of_all(spec.source_files())
    key = artifact.key_of(model_id=spec.model_id, runtime=spec.runtime, source=source, **spec.key_parts())
    target = artifacts_dir / f"{model_id_to_slug(spec.model_id)}-{key}"
    with locked(lock_path(target), f"builds {target.name}") as held:
        remove_leftovers(target)
        if artifact.is_complete(target):
            artifact.serve_as(target, spec.serving)
        else:
            with artifact.written_aside(target) as folder:
                contents = spec.write(folder, source, held)
                manifest = Manifest(
                    model_id=spec.model_id,
                    runtime=spec.runtime,
                    created=int(time.time()),
                    source=source,
                    key=key,
                    serving=spec.serving,
                    **contents.fields(),
                )
                artifact.seal(folder, manifest, digests)
        spec.clean_up(source)
    return target


@contextlib.contextmanager
def _full_disk_is_said(artifacts_dir: Path) -> Iterator[None]:
    """Say of a full disk which it is; Python's own error may name no file."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise BuildError(f"{artifacts_dir}: the disk is full: free some, or name another --state-dir ({exc})") from exc
