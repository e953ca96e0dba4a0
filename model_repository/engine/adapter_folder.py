"""A LoRA adapter that was built for a model, in a folder of its own: what it says of itself, and whether that is so."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from model_repository.errors import InvalidRequest

MANIFEST = "adapter.json"
FORMAT = 1  # of the folder's layout
WEIGHTS = {"llama_cpp": "adapter.gguf", "tensorrt_llm": ""}  # what a runtime loads: a file of the folder, or all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterManifest:
    """What an adapter was built for, and the digests of its files; `build_engines` writes it."""

    runtime: str
    base: str  # of the model: another one where its weights are others
    rank: int
    modules: tuple[str, ...]  # that it changes, by the runtime's names, where models are built for some only
    files: dict[str, str]  # name to sha256
    format: int = FORMAT

    def save(self, folder: Path) -> None:
        """Write it: the last file of a folder."""
        (folder / MANIFEST).write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def from_fields(cls, fields: Any) -> Self:
        """Read what `save` wrote.

        Raises:
            ValueError: it is something else.
        """
        if not isinstance(fields, dict) or fields.get("format") != FORMAT:
            raise ValueError(f"expected a JSON object of format {FORMAT}")
        kinds = {"runtime": str, "base": str, "rank": int, "modules": list, "files": dict}
        if any(type(fields.get(name)) is not kind for name, kind in kinds.items()):
            raise ValueError(f"expected {', '.join(kinds)}")
        texts = (*fields["modules"], *fields["files"], *fields["files"].values())
        if not all(isinstance(text, str) for text in texts) or fields["rank"] < 1:
            raise ValueError("expected names, digests, and a rank of at least 1")
        return cls(modules=tuple(fields["modules"]), **{name: fields[name] for name in kinds if name != "modules"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter as a runtime takes it."""

    path: Path  # of the file or the folder that the runtime loads
    key: str  # another one where the weights are others
    num_bytes: int
    source: str = ""  # its folder, relative to the root of adapters; empty: it is part of the model's artifact
    rank: int = 0  # 0: not known, of the artifact's own
    modules: tuple[str, ...] = ()  # likewise

    @classmethod
    def of_artifact(cls, path: Path) -> Self:
        """Return one that is part of an artifact, which was checked when it was built."""
        paths = path.iterdir() if path.is_dir() else [path]
        return cls(path=path, key=str(path), num_bytes=sum(each.stat().st_size for each in paths if each.is_file()))


def read_adapter(folder: Path, source: str, *, runtime: str, base: str, max_rank: int) -> Adapter:
    """Check an adapter's folder against the model that is served; all of its files are read.

    Args:
        folder: resolved.
        source: what the caller calls it; errors show no other path.
        runtime: the model's.
        base: the model's.
        max_rank: a larger one is refused.

    Raises:
        InvalidRequest: names the rule that it breaks.
    """
    manifest = _read_manifest(folder, source)
    if manifest.runtime != runtime:
        raise _refused(source, f"it was built for the runtime {manifest.runtime}, and the model's is {runtime}")
    if manifest.base != base:
        raise _refused(source, "it was built for other weights than the model's: build it again for this artifact")
    if manifest.rank > max_rank:
        raise _refused(source, f"its rank is {manifest.rank}: at most {max_rank} (--max-adapter-rank)")
    num_bytes = 0
    for name, digest in manifest.files.items():
        path = folder / name
        if Path(name).name != name or path.is_symlink() or not path.is_file():
            raise _refused(source, f"its file {name!r} is missing, or is none of this folder")
        num_bytes += path.stat().st_size
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise _refused(source, f"its file {name!r} differs from its digest in {MANIFEST}: build it again")
    weights = WEIGHTS[runtime]
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
        rule = f"it has no {MANIFEST}: `python -m build_engines adapter` makes such a folder of an adapter of PEFT's"
        raise _refused(source, rule)
    try:
        return AdapterManifest.from_fields(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as exc:
        raise _refused(source, f"{MANIFEST} is not what `python -m build_engines adapter` writes ({exc})") from exc


def _refused(source: str, rule: str) -> InvalidRequest:
    return InvalidRequest(f"{source!r}: {rule}", "source")
