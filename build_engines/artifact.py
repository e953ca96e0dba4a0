"""A built model on disk: a folder with a manifest, written aside and renamed into place when it is whole."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from build_engines.checkpoint import read_json
from build_engines.errors import ArtifactInvalid, BuildError
from build_engines.serving import Serving

MANIFEST = "manifest.json"
FORMAT = 2  # of the artifact's layout: another number makes older artifacts invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an artifact is, what it was made of, and the digests of its files."""

    model_id: str
    runtime: str
    context_window: int
    eos_token_ids: tuple[int, ...]
    created: int  # unix seconds
    source: dict[str, str]  # what it was made of: file name to sha256
    key: str  # of everything that makes it valid or not
    format: int = FORMAT
    precision: str = "f16"  # of matrices and KV cache
    options: dict[str, str] = field(default_factory=dict)  # the runtime's own
    adapters: dict[str, str] = field(default_factory=dict)  # name to path, relative to the artifact
    tool_call_format: str
    has_chat_template: bool
    serving: Serving = field(default_factory=Serving)  # not in the key
    files: dict[str, str] = field(default_factory=dict)  # relative path to sha256

    @classmethod
    def load(cls, artifact_dir: Path) -> Manifest:
        """Read an artifact's manifest.

        Raises:
            ArtifactInvalid: there is none, or another version wrote it.
        """
        path = artifact_dir / MANIFEST
        try:
            fields = read_json(path)
        except BuildError as exc:
            missing = f"{artifact_dir}: not an artifact, {MANIFEST} is missing"
            raise ArtifactInvalid(str(exc) if path.exists() else missing) from exc
        if fields.get("format", FORMAT) != FORMAT:
            raise ArtifactInvalid(f"{path}: format {fields['format']}, expected {FORMAT}: build it again")
        try:
            eos_token_ids, serving = tuple(fields["eos_token_ids"]), Serving.of(**fields["serving"])
            return cls(**(fields | {"eos_token_ids": eos_token_ids, "serving": serving}))
        except (BuildError, KeyError, TypeError) as exc:
            raise ArtifactInvalid(f"{path}: not a manifest ({exc})") from exc

    def save(self, artifact_dir: Path) -> None:
        """Write it into the artifact, in one piece: who reads it meanwhile finds this one or the older one."""
        text = json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False)
        aside = artifact_dir / f".{MANIFEST}.{os.getpid()}"
        aside.write_text(text + "\n", encoding="utf-8")
        aside.replace(artifact_dir / MANIFEST)


def file_digest(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def key_of(**parts: object) -> str:
    """Return a short digest of everything that makes an artifact valid or not."""
    canonical = json.dumps({"format": FORMAT, **parts}, sort_keys=True, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def is_complete(artifact_dir: Path) -> bool:
    """Whether an artifact of this format is there with all its files; their digests are not read."""
    try:
        manifest = Manifest.load(artifact_dir)
    except ArtifactInvalid:
        return False
    return all((artifact_dir / name).is_file() for name in manifest.files)


def verify(artifact_dir: Path) -> Manifest:
    """Return the manifest of an artifact whose files are all there and unchanged.

    Raises:
        ArtifactInvalid: names the file that is missing or differs.
    """
    manifest = Manifest.load(artifact_dir)
    for name, digest in manifest.files.items():
        path = artifact_dir / name
        if not path.is_file():
            raise ArtifactInvalid(f"{path}: missing, build it again")
        if file_digest(path) != digest:
            raise ArtifactInvalid(
                f"{path}: differs from its digest in {MANIFEST}: remove {artifact_dir}, build it again"
            )
    return manifest


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock: a second builder waits here, and finds the first one's artifact."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def written_aside(target: Path) -> Iterator[Path]:
    """Yield a new folder beside `target` that takes its place when the block ends well, and vanishes when not."""
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        aside.chmod(0o755)
        yield aside
        retired = aside.with_name(aside.name + ".old")
        if target.exists():
            os.rename(target, retired)
        os.rename(aside, target)
        shutil.rmtree(retired, ignore_errors=True)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def seal(artifact_dir: Path, manifest: Manifest) -> Manifest:
    """Compute the digests of all files and write the manifest, the last file of an artifact."""
    names = sorted(str(path.relative_to(artifact_dir)) for path in artifact_dir.rglob("*") if path.is_file())
    sealed = dataclasses.replace(manifest, files={name: file_digest(artifact_dir / name) for name in names})
    sealed.save(artifact_dir)
    return sealed


def serve_as(artifact_dir: Path, serving: Serving) -> None:
    """Change how an artifact is offered, which needs no other files; its lock is held."""
    manifest = Manifest.load(artifact_dir)
    if manifest.serving != serving:
        dataclasses.replace(manifest, serving=serving).save(artifact_dir)
