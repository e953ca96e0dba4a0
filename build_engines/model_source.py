"""What a model's name on the command line means for a CPU: a checkpoint, or a GGUF file, of this machine or the hub."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Collection, Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]
from msgspec.structs import replace

from build_engines.catalog import Catalog
from build_engines.checkpoint import read_config
from build_engines.cpu_spec import MATRIX_PRECISIONS, ModelSource
from build_engines.digests import Digests
from build_engines.errors import BuildError, CatalogError, UnsupportedCheckpoint
from build_engines.hub import (
    HUB_ERRORS,
    HubReference,
    HubRepository,
    download_checkpoint,
    reference_of_address,
    storage_of,
)
from build_engines.json_files import class_of, read_json
from build_engines.llama_cpp.gguf_header import PART_NAME, part_names
from build_engines.llama_cpp.model_config import ARCHITECTURES, read_model
from build_engines.llama_cpp.projector import ARCHITECTURES as IMAGE_ARCHITECTURES
from build_engines.memory_fit import SHARE
from build_engines.model_entry import ModelEntry
from build_engines.scores import CLASSIFIERS
from build_engines.sentence_transformers import ENCODERS
from build_engines.serving import check_id
from model_repository.runtimes import PROJECTOR
from model_repository.system.command_parser import did_you_mean
from model_repository.system.cores import memory_bytes

logger = logging.getLogger(__name__)

DEMO = Path(str(resources.files("build_engines").joinpath("demo")))
DEMO_MODELS = ("demo", "demo-embedder")

_HUB_TIMEOUT_S = 10.0
_VARIANT = "Q4_K_M"  # default among several GGUF files: most repositories have it
_MAX_NAMES = 12  # file names in a message
_MAX_QUANTIZED = 3  # repositories that are tried, and named in a message
_TAKEN = "gguf_repository"  # file in the cache of an unconverted checkpoint: later builds take the same
_BASE_MODEL = re.compile(r"^base_model:\s*(?:-\s*)?(?P<name>[\w.-]+/[\w.-]+)\s*$", re.MULTILINE)
_KV_CACHE = ("f16", "f32")
_BITS = {"f16": 16, "q8_0": 8.5, "q4_k_m": 4.9}  # of a weight, about
CONVERTED = (*ARCHITECTURES, *ENCODERS, *CLASSIFIERS, *IMAGE_ARCHITECTURES)
_F16 = re.compile(r"(?<![a-z0-9])f16", re.IGNORECASE)  # and not bf16


def model_id_of(model: str) -> str:
    """Return the id that a model gets from its name, as `find_source` takes it."""
    model = reference_of_address(model)
    if model in DEMO_MODELS:
        return model
    path, found = _path_of(model), HubReference.find(model)
    if path.is_dir():
        return path.resolve().name
    if _is_gguf(path, found):
        return path.stem
    if found is None:
        return model
    return found.repository if found.variant is None else f"{found.repository}:{found.variant}"


def find_source(model: str, precision: str | None, digests: Digests) -> ModelSource:
    """Find a model by its name, and download it if it is on the hub.

    Args:
        model: as the help of `build` lists them.
        precision: one of MATRIX_PRECISIONS; None: that of the name, or the default.
        digests: of large files, for the check of a download.

    Raises:
        CatalogError: there is no such model.
        BuildError: it can be neither served nor converted.
    """
    model = reference_of_address(model)
    if model == "demo":
        configs = sorted(DEMO.glob("adapters/*/adapter_config.json"))
        return ModelSource(
            model_id=model,
            checkpoint=DEMO / "checkpoint",
            projector=DEMO / PROJECTOR,
            adapters={f"demo-{config.parent.name}": config.parent for config in configs},
            precision=precision or "f32",
        )
    if model == "demo-embedder":
        return ModelSource(model_id=model, checkpoint=DEMO / "embedder", precision=precision or "f32")
    path, found, model_id = _path_of(model), HubReference.find(model), model_id_of(model)
    if path.is_dir():
        if not (path / "config.json").exists():
            raise BuildError(f"{model}: a folder with neither a checkpoint (config.json) nor a GGUF file")
        _check_id(model_id, f"--checkpoint {shlex.quote(model)}")
        return ModelSource(model_id=model_id, checkpoint=path, precision=precision or "f16")
    if _is_gguf(path, found):
        _check_id(model_id, f"--gguf {shlex.quote(str(path))}")
        return ModelSource(model_id=model_id, gguf=path, precision=_of_kv_cache(precision))
    if path.is_file():
        raise BuildError(f"{model}: {_rule_of_file(path)}")
    entry = _entry(model)
    if entry is not None:
        return replace(_of_entry(model, entry, precision, digests), named_facts=entry.named_facts)
    if found is None:
        raise CatalogError(f"{model}: no such folder, nor OWNER/NAME of the hub")
    return _of_hub(model_id, found, precision, digests)


def _of_entry(model: str, entry: ModelEntry, precision: str | None, digests: Digests) -> ModelSource:
    reference = HubReference.find(entry.gguf or entry.model_id)
    assert reference is not None
    if entry.gguf is None and entry.architecture.class_name not in CONVERTED:
        reason = f"{entry.architecture.class_name} is not converted"
        return _of_quantized(model, reference, reason, precision, digests)
    return _of_hub(model, reference, precision, digests)


def _rule_of_file(path: Path) -> str:
    """Return what to give in place of a file that is no model."""
    name = path.name.lower()
    if ".gguf" in name:
        return "a part of a GGUF file: join all parts in order first, with cat PARTS > FILE.gguf"
    if name.startswith("modelfile"):
        return "a Modelfile of Ollama: `conch create NAME -f FILE` makes a preset of it"
    return "expected a folder, FILE.gguf or FILE.yaml"


def _is_gguf(path: Path, found: HubReference | None) -> bool:
    """Whether a name is the path of a GGUF file, and no file of the hub."""
    return path.suffix.lower() == ".gguf" and (path.exists() or found is None or found.variant is None)


def _path_of(model: str) -> Path:
    """Return the path that a name is; of a folder with GGUF files alone, that of its model.

    Raises:
        BuildError: the folder has several models.
    """
    folder = Path(model)
    names = _first_parts(path.name for path in folder.glob("*.gguf"))
    if not names or (folder / "config.json").exists():
        return folder
    if len(names) > 1:
        raise BuildError(f"{folder}: name one of its GGUF files: {', '.join(names[:_MAX_NAMES])}")
    return folder / names[0]


def gguf_source(model_id: str, given: str, precision: str | None, digests: Digests) -> ModelSource:
    """Return the source that --gguf names: a file of this machine, or OWNER/NAME:VARIANT of the hub.

    Args:
        precision: as for `find_source`.

    Raises:
        BuildError: it cannot be downloaded.
    """
    reference = HubReference.find(given)
    if Path(given).exists():
        return ModelSource(model_id=model_id, gguf=Path(given), precision=_of_kv_cache(precision))
    if reference is None or reference.variant is None:
        raise BuildError(f"--gguf {given}: no such file, nor of the form OWNER/NAME:VARIANT")
    repository = HubRepository.open(reference)
    return _download_gguf(model_id, repository, _chosen(repository), precision, digests)


def _check_id(model_id: str, flag: str) -> None:
    """Check the id that is derived from a MODEL.

    Args:
        flag: builds the same model under the name NAME.

    Raises:
        BuildError: it cannot be the id of a model.
    """
    try:
        check_id(model_id)
    except BuildError as exc:
        raise BuildError(f"{exc}: `conch build NAME {flag}` serves it as NAME") from exc


def _of_kv_cache(precision: str | None) -> str:
    """Return the precision of the KV cache of a GGUF file.

    Raises:
        BuildError: a KV cache cannot have it.
    """
    if precision not in (None, *_KV_CACHE):
        rule = f"a GGUF file keeps its precision: expected {' or '.join(_KV_CACHE)}, for the KV cache"
        raise BuildError(f"--precision {precision}: {rule}")
    return precision or _KV_CACHE[0]


def _entry(model: str) -> ModelEntry | None:
    try:
        return Catalog.load().find(model)
    except CatalogError as exc:
        if "/" in model:
            return None
        if hint := did_you_mean(model, DEMO_MODELS):
            raise CatalogError(f"{model}: no such model{hint}") from exc
        raise CatalogError(f"{exc} (a MODEL may also be OWNER/NAME of the hub, a folder or FILE.gguf)") from exc


def _of_hub(model_id: str, reference: HubReference, precision: str | None, digests: Digests) -> ModelSource:
    repository = HubRepository.open(reference)
    chosen, variant = _chosen(repository), reference.variant
    is_gguf_alone = bool(_first_parts(repository.sizes)) and not repository.matching("*.safetensors")
    if is_gguf_alone or (chosen is not None and variant is not None):
        return _download_gguf(model_id, repository, chosen, precision, digests)
    names = repository.matching("config.json")
    if not names:
        raise BuildError(f"{reference}: neither a checkpoint with config.json, nor a GGUF file")
    reason = _why_not_converted(repository.download(names, digests), repository.sizes)
    if reason is not None and chosen is None:
        return _of_quantized(model_id, reference, reason, precision, digests)
    if reason is not None:
        return _download_gguf(model_id, repository, chosen, precision, digests)
    if variant is not None and variant.lower() not in MATRIX_PRECISIONS:
        precisions = f"the precisions are {', '.join(MATRIX_PRECISIONS)}"
        raise BuildError(f"{reference}: no GGUF file or precision {variant}: {_gguf_files(repository)}; {precisions}")
    if variant is not None and precision not in (None, variant.lower()):
        raise BuildError(f"--precision {precision}: {model_id} names a precision already: leave out --precision")
    precision = precision or (variant or "f16").lower()
    _check_id(model_id, f"--checkpoint {reference} --precision {precision}")
    return ModelSource(model_id=model_id, checkpoint=download_checkpoint(repository, digests), precision=precision)


def _first_parts(names: Iterable[str]) -> list[str]:
    """Return the GGUF files of models, of a split one its first."""
    found = []
    for name in names:
        part = PART_NAME.fullmatch(name)
        is_first = part is None or int(part["number"]) == 1
        if name.endswith(".gguf") and is_first and "mmproj" not in name:
            found.append(name)
    return sorted(found)


def _chosen(repository: HubRepository) -> str | None:
    """Return the GGUF file of the reference's variant."""
    variant, names = repository.reference.variant, _first_parts(repository.sizes)
    if variant is None and len(names) == 1:
        return names[0]
    is_variant = re.compile(rf"(.*[-._/])?{re.escape(variant or _VARIANT)}(-\d{{5}}-of-\d{{5}})?\.gguf", re.IGNORECASE)
    return next((name for name in names if name == variant or is_variant.fullmatch(name)), None)


def _download_gguf(
    model_id: str, repository: HubRepository, chosen: str | None, precision: str | None, digests: Digests
) -> ModelSource:
    """Download a GGUF file, its other parts, and the file with which the model reads images."""
    precision, reference = _of_kv_cache(precision), repository.reference
    if chosen is None:
        named = "name one behind a colon" if reference.variant is None else reference.variant
        raise BuildError(f"{reference}: {named}: {_gguf_files(repository)}")
    _check_id(model_id, f"--gguf {reference}:{reference.variant or chosen}")
    projectors = repository.matching("*mmproj*.gguf")
    projector = min(projectors, key=lambda name: (not _F16.search(name), name), default=None)
    folder = repository.download([*_parts(chosen), *([projector] if projector else [])], digests)
    return ModelSource(
        model_id=model_id,
        gguf=folder / chosen,
        projector=None if projector is None else folder / projector,
        precision=precision,
    )


def _gguf_files(repository: HubRepository) -> str:
    names = _first_parts(repository.sizes)
    listed = [*names[:_MAX_NAMES], *(["..."] if len(names) > _MAX_NAMES else [])]
    return f"the repository's GGUF files are {', '.join(listed)}" if names else "the repository has no GGUF files"


def _parts(first: str) -> list[str]:
    part = PART_NAME.fullmatch(first)
    return [first] if part is None else list(part_names(part["model"], int(part["count"])))


def check_converted(folder: Path) -> None:
    """Check that the checkpoint of a folder is converted.

    Raises:
        BuildError: it is not; names GGUF files of the model that the folder names, if the hub knows some.
    """
    reason = _why_not_converted(folder, [path.name for path in folder.iterdir()])
    if reason is None:
        return
    base = _base_model(folder)
    found = ", ".join(_quantized(base)[:_MAX_QUANTIZED]) if base else ""
    made = "one of the hub, or one that convert_hf_to_gguf.py of llama.cpp makes of the folder"
    advice = f"such as those of {found}, made of {base}" if found else made
    raise BuildError(f"{folder}: {reason}: take a GGUF file of the model, {advice}")


def _base_model(folder: Path) -> str | None:
    """Return the model of the hub that config.json or README.md names."""
    named = HubReference.find(str(read_json(folder / "config.json").get("_name_or_path")))
    if named is not None:
        return named.repository
    readme = folder / "README.md"
    found = _BASE_MODEL.search(readme.read_text(encoding="utf-8", errors="replace")) if readme.is_file() else None
    return found and found["name"]


def _why_not_converted(folder: Path, names: Collection[str]) -> str | None:
    """Return why a checkpoint is not converted; None: it is.

    Args:
        folder: with config.json.
        names: of the checkpoint's files.

    Raises:
        BuildError: config.json is missing or malformed.
    """
    config, whole = read_config(folder)
    architecture = class_of(whole)
    if architecture not in CONVERTED:
        return f"{architecture} is not converted"
    if "tokenizer.json" not in names:
        return "no tokenizer.json, and no other kind of tokenizer is converted"
    if not any(name.endswith(".safetensors") for name in names):
        return "no safetensors, and no other kind of weights is converted"
    try:
        read_model(config)
    except UnsupportedCheckpoint as exc:
        return str(exc)
    return None


def _of_quantized(
    model_id: str, reference: HubReference, reason: str, precision: str | None, digests: Digests
) -> ModelSource:
    """Download a GGUF file that others have made of a checkpoint.

    Args:
        reason: why the checkpoint is not converted.

    Raises:
        BuildError: the hub knows no such file of the variant, or its revision is another one.
    """
    taken = storage_of(reference.repository) / _TAKEN
    former = [taken.read_text(encoding="utf-8")] if taken.is_file() else []
    names = sorted(_quantized(reference.repository) or former, key=lambda name: name not in former)[:_MAX_QUANTIZED]
    asked = [HubReference(name, "main", reference.variant) for name in names if reference.revision == "main"]
    repository = next(filter(_chosen, map(HubRepository.open, asked)), None)
    if repository is None:
        found = f", such as those of {', '.join(names)}" if names else ""
        lacking = f" (none has {reference.variant or _VARIANT})" if asked else ""
        raise BuildError(f"{reference}: {reason}: take a GGUF file of the model{found}{lacking}")
    chosen, where = _chosen(repository), repository.reference.repository
    logger.warning("hub         %s: %s: taking %s of %s", reference, reason, chosen, where)
    source = _download_gguf(model_id, repository, chosen, precision, digests)
    taken.parent.mkdir(parents=True, exist_ok=True)
    taken.write_text(where, encoding="utf-8")
    return source


def on_this_cpu(entry: ModelEntry) -> str | None:
    """Return how this machine serves a model on the CPU; None: its memory is too small.

    A checkpoint is converted in the largest precision that fits. A model of another architecture needs a GGUF file, of
    the catalog or of others on the hub.
    """
    most_bits = 8 * SHARE * memory_bytes() / entry.architecture.num_parameters
    if entry.gguf is not None:
        variant = entry.gguf.rpartition(":")[2]
        return f"GGUF {variant}" if _BITS.get(variant.lower(), _BITS["q4_k_m"]) <= most_bits else None
    precision = next((name for name, num_bits in _BITS.items() if num_bits <= most_bits), None)
    if precision is None or entry.architecture.class_name not in CONVERTED:
        return None if precision is None else "GGUF of the hub"
    return f"converted, {precision}"


def _quantized(repository: str) -> list[str]:
    """Return the repositories with GGUF files of a model; none if the hub does not say.

    The one of its owner comes first, then those that are downloaded most.
    """
    asked: dict[str, Any] = {"filter": ["gguf", f"base_model:quantized:{repository}"], "sort": "downloads", "limit": 30}
    try:  # not by list_models, which tries for 24 s to reach a hub
        answer = huggingface_hub.get_session().get(
            f"{constants.ENDPOINT}/api/models", params=asked, headers=build_hf_headers(), timeout=_HUB_TIMEOUT_S
        )
        answer.raise_for_status()
        names = [str(info["id"]) for info in answer.json()]
    except HUB_ERRORS:
        return []
    return sorted(names, key=lambda name: name != f"{repository}-GGUF")
