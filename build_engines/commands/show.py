"""`show`: what a model of the store, the catalog or the hub is."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from build_engines.artifact import Manifest
from build_engines.catalog import Catalog
from build_engines.checkpoint import named_sampling, read_config, whole_number
from build_engines.commands.build import fault_of_templates
from build_engines.commands.list import TOO_LARGE, assignments, on_gpus, weights_text
from build_engines.commands.plan import add_catalog_option
from build_engines.cpu_spec import GGUF_NAME
from build_engines.digests import Digests
from build_engines.errors import CatalogError, NotStored
from build_engines.hub import HubReference, HubRepository, reference_of_address
from build_engines.json_files import read_json
from build_engines.llama_cpp.gguf_header import read_gguf_kind
from build_engines.memory_fit import fit
from build_engines.model_entry import ModelEntry
from build_engines.model_source import model_id_of, on_this_cpu
from build_engines.presets import model_of, read_presets
from build_engines.progress import size_text
from build_engines.render import ServeOptions, demand_of
from build_engines.store import Stored, find
from build_engines.text_files import detected_tool_call_format, unknown_marks
from model_repository.model_facts import Task
from model_repository.model_parameters import Preset
from model_repository.system.cores import memory_bytes, num_physical_cores
from model_repository.system.home import add_home

_TEXT_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja")

type Facts = Iterator[tuple[str, str]]  # name and text; lines with an empty text are left out


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "show",
        help="show what a model or a preset is",
        description="Show a preset, or the artifacts of a model. If there are none, show the model of the catalog or "
        "of the hub.",
        epilog="example: conch show demo",
    )
    command.add_argument(
        "model", metavar="MODEL", help="name of a model, as for `build`, of one artifact, or of a preset"
    )
    add_home(command, "with artifacts/")
    add_catalog_option(command)
    command.set_defaults(command=_show)


def _show(options: argparse.Namespace) -> None:
    print("\n\n".join("\n".join(_line(name, text) for name, text in facts if text) for facts in _facts(options)))


def _line(name: str, text: str) -> str:
    return f"{name:15}{' '.join(text.splitlines())}"  # a file may have named it


def _facts(options: argparse.Namespace) -> Iterator[Facts]:
    """Yield the facts of a preset, or of each artifact of a model; if there are none, those of the model.

    Raises:
        CatalogError: it is not in the store, the catalog or the hub.
    """
    presets = read_presets(options.home)
    if (model_id := model_of(presets, options.model)) is not None:
        yield _of_preset(options.model, model_id, presets[model_id][options.model])
        return
    try:
        yield from map(_of_artifact, find(options.home, options.model))
    except NotStored:
        is_of_hub = HubReference.find(model_id_of(options.model)) is not None
        reference = HubReference.find(reference_of_address(options.model)) if is_of_hub else None
        try:
            yield _of_entry(Catalog.load(*options.catalog).find(options.model))
        except CatalogError:
            if reference is None:
                raise
            yield _of_hub(reference, Digests.beside(options.home / "artifacts" / "artifact"))


def _of_preset(name: str, model_id: str, preset: Preset) -> Facts:
    yield "preset", name
    yield "model", model_id
    yield "system prompt", preset.system
    yield "defaults", ", ".join(assignments(preset.defaults))


def _of_artifact(artifact: Stored) -> Facts:
    yield "model", artifact.model_id
    yield "artifact", str(artifact.folder)
    yield "size", size_text(artifact.size_bytes)
    if artifact.manifest is None:
        yield "error", artifact.error
    else:
        yield from _of_manifest(artifact.manifest, artifact.folder)
    yield "served at", "" if artifact.server is None else artifact.server.url


def _of_manifest(manifest: Manifest, folder: Path) -> Facts:
    yield "task", _task(manifest)
    yield "runtime", manifest.runtime
    weights = min(folder.glob(f"{GGUF_NAME}*.gguf"), default=None)  # the first part
    if weights is None:
        yield "precision", manifest.precision
    else:
        architecture, precision, num_weights = read_gguf_kind(weights)
        yield "architecture", _architecture(architecture, num_weights)
        yield "precision", f"{precision or 'unknown'}, KV cache {'f32' if manifest.precision == 'f32' else 'f16'}"
    yield "context", f"{manifest.context_window:,} tokens"
    demand = demand_of(folder, manifest, ServeOptions())
    [(num_sequences, window)] = fit([demand], memory_bytes(), num_physical_cores())
    yield "sequences", str(num_sequences) if manifest.task is Task.GENERATE else ""
    yield "memory", demand.text(num_sequences, window)
    yield "aliases", ", ".join(manifest.serving.aliases)
    yield "loading", manifest.serving.loading.text
    yield "adapters", ", ".join(manifest.adapters)
    yield "defaults", ", ".join(assignments(manifest.defaults))
    if manifest.task is Task.GENERATE:
        yield "tools", manifest.tool_call_format
        yield "thinking", manifest.reasoning_format
        yield "images", "yes" if manifest.has_images else ""
        yield from _of_templates(folder / "tokenizer")


def _task(model: Manifest | ModelEntry) -> str:
    return f"{model.task}, by {model.pooling}" if model.pooling else model.task


def _of_templates(folder: Path) -> Facts:
    fault = fault_of_templates(folder)
    yield "chat template", fault or "yes"
    for kind, marks in unknown_marks(folder).items() if fault is None else ():
        yield f"unknown {kind}", marks or "yes"


def _of_entry(entry: ModelEntry) -> Facts:
    yield "model", entry.model_id
    yield "names", ", ".join(entry.aliases)
    yield "task", _task(entry)
    yield "artifact", "none: `conch pull` makes one"
    yield "size", f"{size_text(entry.checkpoint_bytes)} in 16 bit"
    yield "architecture", _architecture(entry.architecture.class_name, entry.architecture.num_parameters)
    yield "context", f"{entry.context_window:,} tokens"
    yield "GGUF file", entry.gguf or ""
    yield "on this CPU", on_this_cpu(entry) or TOO_LARGE
    yield "on GPUs", f"{on_gpus(entry)}; `conch plan` shows their number" if entry.backends else on_gpus(entry)
    yield "defaults", ", ".join(assignments(entry.sampling))
    yield "tools", entry.tool_call_format
    yield "thinking", entry.reasoning_format
    yield "license", entry.terms
    for note in entry.notes:
        yield "note", note


def _of_hub(reference: HubReference, digests: Digests) -> Facts:
    repository = HubRepository.open(reference)
    folder = repository.download(repository.matching(*_TEXT_FILES), digests)
    config, whole = read_config(folder) if "config.json" in repository.sizes else ({}, {})
    window = config.get("max_position_embeddings")
    weights = repository.matching("*.safetensors")
    yield "model", str(reference)
    yield "artifact", "none: `conch pull` makes one"
    yield "size", size_text(sum(repository.sizes[name] for name in weights)) if weights else ""
    for name in sorted(repository.sizes):
        if name.endswith(".gguf"):
            yield "GGUF file", f"{name}, {size_text(repository.sizes[name])}"
    yield "architecture", ", ".join(map(str, whole.get("architectures") or ()))
    if window is not None:
        yield "context", f"{whole_number('config.json: max_position_embeddings', window):,} tokens"
    if weights:
        generation = read_json(folder / "generation_config.json", is_optional=True)
        yield "defaults", ", ".join(assignments(named_sampling(generation)))
        yield "tools", detected_tool_call_format(folder)
        yield from _of_templates(folder)


def _architecture(name: str, num_weights: int) -> str:
    return f"{name}, {weights_text(num_weights)}"
