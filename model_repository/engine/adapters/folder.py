"""A LoRA adapter that was built for a model, in a folder of its own: its manifest, and the checks of it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

import msgspec

from model_repository.errors import InvalidRequest
from model_repository.runtimes import RUNTIMES

MANIFEST = "adapter.json"


class AdapterManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The target of an adapter, and the digests of its files; `build_engines` writes it."""

    runtime: str
    base: str  # identifies the weights of the model
    rank: Annotated[int, msgspec.Meta(ge=1)]
    modules: tuple[str, ...]  # the changed modules, by the runtime's names; only for models built for certain modules
    files: dict[str, str]  # name to sha256
    format: Literal[1] = 1  # layout of the folder

    def save(self, folder: Path) -> None:
        """Write the manifest: the last file of a folder."""
        text = msgspec.json.format(msgspec.json.encode(self), indent=2).decode()
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter, ready for a runtime."""

    path: Path  # file or folder that the runtime loads
    key: str  # identifies the weights
    num_bytes: int
    source: str = ""  # its folder, relative to the root of adapters; empty: part of the model's artifact
    rank: int = 0  # 0: unknown, for adapters of the artifact
    modules: tuple[str, ...] = ()  # empty: unknown, for adapters of the artifact

    @classmethod
    def of_artifact(cls, path: Path) -> Self:
        """Return an adapter of an artifact, which was checked when it was built."""
        paths = path.iterdir() if path.is_dir() else [path]
        return cls(path=path, key=str(path), num_bytes=sum(each.stat().st_size for each in paths if each.is_file()))


def read_adapter(folder: Path, source: str, *, runtime: str, base: str, max_rank: int) -> Adapter:
    """Check an adapter's folder against the served model; this reads all of its files.

    Args:
        folder: resolved.
        source: the caller's name of the folder; errors show no other path.

    Raises:
        InvalidRequest: names the broken rule.
    """
    manifest = _read_manifest(folder, source)
    if manifest.runtime != runtime:
        raise _refused(source, f"built for the runtime {manifest.runtime}, and the model's is {runtime}")
    if manifest.base != base:
        raise _refused(source, "built for other weights than the model's: build it again for this artifact")
    if manifest.rank > max_rank:
        raise _refused(source, f"its rank is {manifest.rank}: at most {max_rank} (--max-adapter-rank)")
    num_bytes = 0
    for name, digest in manifest.files.items():
        path = folder / name
        if Path(name).name != name or path.is_symlink() or not path.is_file():
            raise _refused(source, f"its file {name!r} is missing, or is not in this folder")
        num_bytes += path.stat().st_size
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise _refused(source, f"its file {name!r} differs from its digest in {MANIFEST}: build it again")
    weights = RUNTIMES[runtime].adapter_file
    if weights and weights not in manifest.files:
        raise _refused(source, f"{MANIFEST} names no {weights}")
    return Adapter(
        path=folder / weights,
        key=hashlib.sha256(json.dumps(manifest.files, sort_keys=True).encode()).hexdigest(),
        num_bytes=num_bytes,
        source=source,
        rank=manifest.rank,
        modules=manifest.modules,
    )


def _read_manifest(folder: Path, source: str) -> AdapterManifest:
    path = folder / MANIFEST
    if path.is_symlink() or not path.is_file():
        rule = f"has no {MANIFEST}: `conch adapter` makes such a folder of an adapter of PEFT's"
        raise _refused(source, rule)
    try:
        return msgspec.json.decode(path.read_bytes(), type=AdapterManifest)
    except (ValueError, msgspec.DecodeError) as exc:  # ValueError: not UTF-8
        raise _refused(source, f"{MANIFEST} is not what `conch adapter` writes ({exc})") from exc


def _refused(source: str, rule: str) -> InvalidRequest:
    return InvalidRequest(f"{source!r}: {rule}", "source")
