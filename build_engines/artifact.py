"""A built model on disk: a folder with a manifest, written aside and renamed into place when it is complete."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec import field
from msgspec.structs import replace

from build_engines.digests import Digests
from build_engines.errors import ArtifactInvalid, BuildError
from build_engines.json_files import read_json
from build_engines.sequence_memory import SequenceMemory
from build_engines.serving import Serving, check_id
from model_repository.model_facts import ModelFacts
from model_repository.model_parameters import API_SAMPLING, ModelDefaults
from model_repository.system.linked_file import LinkedFile, why_changed

MANIFEST = "manifest.json"
FORMAT = 6  # layout of the files: another number makes older artifacts invalid
KEY_LENGTH = 12  # digits
MAX_COPIED_BYTES = 256 << 20  # a disk copies this in about a second


class Contents(ModelFacts, frozen=True, kw_only=True):
    """The part of a manifest that describes the written files."""

    sampling: Mapping[str, int | float] = {}  # the author's values for requests without these fields
    has_images: bool = False  # the model reads images
    build: Mapping[str, Any] = {}  # a record for people
    sequence_memory: SequenceMemory | None = None  # a CPU model's; None: unknown
    gpu_bytes: int = 0  # of all GPUs together, by the plan; 0: unknown


class Manifest(Contents, frozen=True, kw_only=True, omit_defaults=False):
    """The model of an artifact, its sources, and the digests of its files.

    Defaults are written too: an earlier version, after a rollback, requires some of them.
    """

    model_id: str
    runtime: str
    created: int  # unix seconds
    source: Mapping[str, str]  # file name to sha256
    key: str  # digest of all inputs of the build
    format: int = field(default_factory=lambda: FORMAT)
    serving: Serving = Serving()  # not in the key
    files: Mapping[str, str] = {}  # relative path to sha256
    linked: Mapping[str, LinkedFile] = {}  # those files that are links to source files

    @property
    def defaults(self) -> ModelDefaults:
        """The request defaults: the operator's before the author's, without those of the API document."""
        defaults = {**self.sampling, **self.serving.defaults}.items()
        return cast(
            ModelDefaults, {name: value for name, value in defaults if (name, value) not in API_SAMPLING.items()}
        )

    @property
    def base(self) -> str:
        """A digest of the model without its own adapters. An adapter that was built for it fits no other model."""
        return key_of(source={name: digest for name, digest in self.source.items() if not name.startswith("adapters/")})

    def named(self, name: str) -> Manifest:
        """Return it with another name of the model for clients, which may have been an alias.

        Raises:
            BuildError: the name breaks its rule.
        """
        check_id(name)
        aliases = tuple(alias for alias in self.serving.aliases if alias != name)
        return replace(self, model_id=name, serving=dataclasses.replace(self.serving, aliases=aliases))

    @classmethod
    def load(cls, artifact_dir: Path) -> Manifest:
        """Read an artifact's manifest.

        Raises:
            ArtifactInvalid: the manifest is missing, or another version wrote it.
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
            manifest = msgspec.convert(fields, cls)
            serving = manifest.serving
            return replace(manifest, serving=Serving.of(serving.aliases, serving.defaults, serving.loading))
        except (BuildError, msgspec.ValidationError) as exc:
            raise ArtifactInvalid(f"{path}: not a manifest ({exc})") from exc

    def save(self, artifact_dir: Path) -> None:
        """Write it into the artifact atomically: a reader sees the old or the new manifest."""
        text = msgspec.json.format(msgspec.json.encode(self, order="deterministic"), indent=2).decode()
        aside = artifact_dir / f".{MANIFEST}.{secrets.token_hex(8)}"
        aside.write_text(text + "\n", encoding="utf-8")
        aside.replace(artifact_dir / MANIFEST)


def key_of(**parts: object) -> str:
    """Return a short digest of all inputs of a build."""
    canonical = json.dumps({"format": FORMAT, **parts}, sort_keys=True, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:KEY_LENGTH]


def why_incomplete(artifact_dir: Path) -> str | None:
    """Return why an artifact cannot be served: another format, a missing file, or a linked one that was changed.

    The files are not read.
    """
    try:
        manifest = Manifest.load(artifact_dir)
    except ArtifactInvalid as exc:
        return str(exc)
    missing = next((name for name in manifest.files if not (artifact_dir / name).is_file()), None)
    return f"{missing} is missing" if missing else why_changed(manifest.linked, artifact_dir)


def verify(artifact_dir: Path, digests: Digests | None = None) -> Manifest:
    """Check that all files of an artifact are unchanged, and return its manifest.

    Args:
        artifact_dir: the artifact.
        digests: known digests of large files, which are not read again; None: all files are read.

    Raises:
        ArtifactInvalid: names the file that is missing or differs.
    """
    manifest = Manifest.load(artifact_dir)
    for name in manifest.files:
        if not (artifact_dir / name).is_file():
            raise ArtifactInvalid(f"{artifact_dir / name}: missing, build it again")
    if reason := why_changed(manifest.linked, artifact_dir):
        raise ArtifactInvalid(reason)
    found = (digests or Digests()).of_all({name: artifact_dir / name for name in manifest.files})
    for name, digest in manifest.files.items():
        if found[name] != digest:
            raise ArtifactInvalid(
                f"{artifact_dir / name}: differs from its digest in {MANIFEST}: remove {artifact_dir}, build it again"
            )
    return manifest


@contextlib.contextmanager
def written_aside(target: Path) -> Iterator[Path]:
    """Yield a new folder that replaces `target` after the block. An exception removes it."""
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


def copy_or_link(source: Path, target: Path) -> None:
    """Put a source file into an artifact: a copy where that is cheap, since its owner may change the file.

    A large file is linked, and `seal` records its state. A link, unlike a path, outlives the removal of the source.
    """
    with source.open("rb") as original, target.open("wb") as clone, contextlib.suppress(OSError):
        fcntl.ioctl(clone, fcntl.FICLONE, original.fileno())  # shares the blocks, where the file system can
        return
    if source.stat().st_size > MAX_COPIED_BYTES:
        target.unlink()
        with contextlib.suppress(OSError):  # another file system
            os.link(source.resolve(), target)  # a download cache has symbolic links: link their targets
            return
    shutil.copyfile(source, target)


def seal(
    artifact_dir: Path, manifest: Manifest, digests: Digests | None = None, sources: Collection[Path] = ()
) -> Manifest:
    """Compute the digests of all files and write the manifest, the last file of an artifact.

    Args:
        sources: the source files, to which files of the artifact may be links.
    """
    files = {str(path.relative_to(artifact_dir)): path for path in sorted(artifact_dir.rglob("*")) if path.is_file()}
    # Before the digests, so that a change meanwhile is found.
    linked = {name: LinkedFile.of(each) for name, path in files.items() for each in sources if each.samefile(path)}
    sealed = replace(manifest, files=(digests or Digests()).of_all(files), linked=linked)
    sealed.save(artifact_dir)
    return sealed


def serve_as(artifact_dir: Path, serving: Serving) -> None:
    """Replace the serving part of a manifest. The caller has the artifact's lock."""
    manifest = Manifest.load(artifact_dir)
    if manifest.serving != serving:
        replace(manifest, serving=serving).save(artifact_dir)
