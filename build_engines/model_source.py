"""What a model's name on the command line means for a CPU: a checkpoint, or a GGUF file, of this machine or the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import huggingface_hub

from build_engines.catalog import Catalog
from build_engines.checkpoint import read_json
from build_engines.cpu_spec import check_precision
from build_engines.digests import Digests
from build_engines.errors import BuildError, CatalogError
from build_engines.hub import HUB_ERRORS, HubReference, HubRepository, download_checkpoint
from build_engines.llama_cpp.gguf_header import PART_NAME, part_names
from build_engines.llama_cpp.model_config import ARCHITECTURES
from build_engines.llama_cpp.projector import ARCHITECTURES as IMAGE_ARCHITECTURES
from build_engines.model_entry import ModelEntry
from model_repository.engine.runtime import PROJECTOR

DEMO = Path(str(resources.files("build_engines").joinpath("demo")))

_VARIANT = "Q4_K_M"  # of a repository with several GGUF files: most of them have it
_MAX_NAMES = 12  # of files, in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """The files of a model, and the values that its name implies."""

    model_id: str
    checkpoint: Path | None = None
    gguf: Path | None = None
    projector: Path | None = None
    adapters: dict[str, Path] = field(default_factory=dict)
    precision: str | None = None


def find_source(model: str, digests: Digests) -> ModelSource:
    """Find a model by its name, and download it if it is on the hub.

    Args:
        model: as the help of `build` lists them.
        digests: of large files, for the check of a download.

    Raises:
        BuildError: there is no such model, or it can be neither served nor converted.
    """
    path, found = Path(model), HubReference.find(model)
    if model == "demo":
        configs = sorted(DEMO.glob("adapters/*/adapter_config.json"))
        return ModelSource(
            model_id=model,
            checkpoint=DEMO / "checkpoint",
            projector=DEMO / PROJECTOR,
            adapters={f"demo-{config.parent.name}": config.parent for config in configs},
            precision="f32",
        )
    if path.is_dir():
        return ModelSource(model_id=path.resolve().name, checkpoint=path)
    if path.suffix == ".gguf" and (path.exists() or found is None or found.variant is None):
        return ModelSource(model_id=path.stem, gguf=path)
    entry = _entry(model)
    if entry is not None:
        reference = HubReference(entry.model_id, "main")
        _check_converted(reference, entry.architecture.class_name)
        return _of_hub(model, reference, digests, entry)
    if found is None:
        rule = "expected OWNER/NAME of the hub, a folder, a GGUF file, or a name that `list` shows"
        raise BuildError(f"{model}: {rule}")
    suffix = "" if found.variant is None else f":{found.variant}"
    return _of_hub(f"{found.repository}{suffix}", found, digests)


def gguf_source(model_id: str, given: str, digests: Digests) -> ModelSource:
    """Return the source that --gguf names: a file of this machine, or OWNER/NAME:VARIANT of the hub.

    Raises:
        BuildError: it cannot be downloaded.
    """
    reference = HubReference.find(given)
    if reference is None or reference.variant is None or Path(given).exists():
        return ModelSource(model_id=model_id, gguf=Path(given))
    repository = HubRepository.open(reference)
    return _download_gguf(model_id, repository, _chosen(repository), digests)


def _entry(model: str) -> ModelEntry | None:
    try:
        return Catalog.load().find(model)
    except CatalogError:
        return None


def _of_hub(model_id: str, reference: HubReference, digests: Digests, entry: ModelEntry | None = None) -> ModelSource:
    repository = HubRepository.open(reference, entry)
    chosen = _chosen(repository)
    is_gguf_alone = bool(_models(repository)) and not repository.matching("*.safetensors")
    if is_gguf_alone or (chosen is not None and reference.variant is not None):
        return _download_gguf(model_id, repository, chosen, digests)
    precision = None if reference.variant is None else reference.variant.lower()
    if precision is not None:
        check_precision(precision)
    _check_converted(reference, _architecture(repository, digests))
    return ModelSource(model_id=model_id, checkpoint=download_checkpoint(repository, digests), precision=precision)


def _models(repository: HubRepository) -> list[str]:
    """Return the GGUF files of models, of a split one its first."""
    found = []
    for name in repository.sizes:
        part = PART_NAME.fullmatch(name)
        is_first = part is None or int(part["number"]) == 1
        if name.endswith(".gguf") and is_first and "mmproj" not in name:
            found.append(name)
    return sorted(found)


def _chosen(repository: HubRepository) -> str | None:
    """Return the GGUF file of the reference's variant."""
    variant, names = repository.reference.variant, _models(repository)
    if variant is None and len(names) == 1:
        return names[0]
    is_variant = re.compile(rf"(.*[-._/])?{re.escape(variant or _VARIANT)}(-\d{{5}}-of-\d{{5}})?\.gguf", re.IGNORECASE)
    return next((name for name in names if name == variant or is_variant.fullmatch(name)), None)


def _download_gguf(model_id: str, repository: HubRepository, chosen: str | None, digests: Digests) -> ModelSource:
    """Download a GGUF file, its other parts, and the file with which the model reads images."""
    if chosen is None:
        names = _models(repository)
        listed = ", ".join([*names[:_MAX_NAMES], *(["..."] if len(names) > _MAX_NAMES else [])]) or "it has none"
        raise BuildError(f"{repository.reference}: name one of its GGUF files behind a colon: {listed}")
    projectors = repository.matching("*mmproj*.gguf")
    projector = min(projectors, key=lambda name: ("f16" not in name.lower(), name), default=None)
    folder = repository.download([*_parts(chosen), *([projector] if projector else [])], digests)
    return ModelSource(
        model_id=model_id, gguf=folder / chosen, projector=None if projector is None else folder / projector
    )


def _parts(first: str) -> list[str]:
    part = PART_NAME.fullmatch(first)
    return [first] if part is None else list(part_names(part["model"], int(part["count"])))


def _architecture(repository: HubRepository, digests: Digests) -> str:
    """Return the architecture, without a download of the weights.

    Raises:
        BuildError: the repository has no configuration.
    """
    names = repository.matching("config.json")
    if not names:
        raise BuildError(f"{repository.reference}: neither a checkpoint with config.json, nor a GGUF file")
    config = read_json(repository.download(names, digests) / "config.json")
    return str((config.get("architectures") or ["none"])[0])


def _check_converted(reference: HubReference, architecture: str) -> None:
    """Check that an architecture is converted.

    Raises:
        BuildError: it is not; names GGUF files that others have made of the model.
    """
    if architecture in (*ARCHITECTURES, *IMAGE_ARCHITECTURES):
        return
    rule = f"{architecture} is not converted, only {' and '.join(ARCHITECTURES)}: take a GGUF file of the model"
    found = ", ".join(f"{name}:{_VARIANT}" for name in _quantized(reference.repository))
    raise BuildError(f"{reference}: {rule}{f', such as {found}' if found else ''}")


def _quantized(repository: str) -> list[str]:
    """Return the repositories with GGUF files of a model that are downloaded most; none if the hub does not say."""
    filters = ["gguf", f"base_model:quantized:{repository}"]
    try:
        return [info.id for info in huggingface_hub.HfApi().list_models(filter=filters, sort="downloads", limit=3)]
    except HUB_ERRORS:
        return []
