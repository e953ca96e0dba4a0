"""A checkpoint outside the catalog as an entry of it: for the plan, and for TensorRT-LLM's PyTorch backend."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from build_engines.architecture import Architecture, LayerKind
from build_engines.catalog import Catalog
from build_engines.checkpoint import read_config, whole_number
from build_engines.config_architecture import architecture_of
from build_engines.digests import Digests
from build_engines.errors import BuildError, CatalogError
from build_engines.hub import HubReference, HubRepository, reference_of_address
from build_engines.json_files import class_of
from build_engines.listed_classes import check_listed
from build_engines.model_entry import ModelEntry, Precision
from build_engines.model_source import model_id_of
from build_engines.serving import check_id
from build_engines.tensorrt_llm.recipe import SourceFormat
from build_engines.tensorrt_llm.source import MODELOPT_FILE, READY_PRECISIONS, source_format

_BLOCK_KERNELS = ("sm90", "sm100")  # source: 1.3.0rc29/features/quantization, hardware matrix; Ada has none
_OWN_CODE = (
    "It names Python files of its own. If TensorRT-LLM does not load it without them: --option trust_remote_code=true "
    "runs them."
)


def find_entry(catalog: Catalog, model: str, checkpoint: str | None) -> ModelEntry:
    """Return the entry of a model: of the catalog, or of the files of a checkpoint.

    Args:
        model: a folder, a name of the catalog, OWNER/NAME of the hub; any name if there is a checkpoint.
        checkpoint: a folder or OWNER/NAME@REVISION; None: that of the model.

    Raises:
        CatalogError: there is no such model.
        BuildError: the checkpoint's sizes or its number format are not known.
    """
    if checkpoint is None and Path(model).is_dir():
        return entry_of_checkpoint(model_id_of(model), Path(model))
    reference = HubReference.find(reference_of_address(model))
    try:
        return catalog.find(model, takes_part=checkpoint is None)
    except CatalogError as exc:
        if checkpoint is None and reference is None:
            raise CatalogError(f"{exc} (a MODEL may also be OWNER/NAME of the hub, or a folder)") from exc
    if checkpoint is not None:
        folder = Path(checkpoint) if Path(checkpoint).is_dir() else _downloaded(HubReference.parse(checkpoint))
        return entry_of_checkpoint(model, folder)
    assert reference is not None
    if reference.variant is not None:
        raise BuildError(f"{model}: :{reference.variant} names a GGUF file, which --runtime llama_cpp serves on a CPU")
    return entry_of_checkpoint(reference.repository, _downloaded(reference))


def checkpoint_in(model: str) -> str | None:
    """Return the checkpoint that a model's name is, as --checkpoint takes it: a folder, or OWNER/NAME@REVISION."""
    model = reference_of_address(model)
    return model if Path(model).is_dir() or "@" in model else None


def entry_of_checkpoint(model_id: str, folder: Path) -> ModelEntry:
    """Return the entry of a checkpoint.

    Args:
        folder: with config.json, and with hf_quant_config.json if the checkpoint has one.

    Raises:
        BuildError: TensorRT-LLM lists no such class, or a field is missing or unknown.
    """
    check_id(model_id)
    config, whole = read_config(folder)
    check_listed(model_id, class_of(whole))
    architecture, found = architecture_of(config, whole), source_format(folder, whole)
    dtype = whole.get("dtype") or whole.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype")
    return ModelEntry(
        model_id=model_id,
        architecture=architecture,
        context_window=_context_window(config, architecture),
        license="not known: see its page",
        precisions=(READY_PRECISIONS.get(found, Precision.F16 if dtype == "float16" else Precision.BF16),),
        gpu_architectures=_BLOCK_KERNELS if found is SourceFormat.FP8_BLOCKS else (),
        notes=(_OWN_CODE,) if whole.get("auto_map") else (),
    )


def _context_window(config: dict[str, Any], architecture: Architecture) -> int:
    """Return the context window, which a sliding window of all layers ends: TensorRT-LLM is not known to slide it."""
    context_window = whole_number("config.json: max_position_embeddings", config.get("max_position_embeddings"), 2)
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if window is None or LayerKind.SLIDING in architecture.layer_pattern:
        return context_window
    return min(context_window, whole_number("config.json: sliding_window", window, 2))


@cache
def _downloaded(reference: HubReference) -> Path:
    """Return the folder of the files that say what a checkpoint of the hub is."""
    repository = HubRepository.open(reference)
    names = repository.matching("config.json", MODELOPT_FILE)
    if "config.json" not in names:
        raise BuildError(f"{reference}: no config.json: TensorRT-LLM serves checkpoints in Hugging Face's layout")
    return repository.download(names, Digests())
