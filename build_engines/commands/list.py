"""`list`: the store, and with --all the catalog."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Mapping

from msgspec import to_builtins

from build_engines.catalog import Catalog
from build_engines.commands.plan import add_catalog_option
from build_engines.errors import BuildError
from build_engines.graphics_cards.cards import CARDS, Card
from build_engines.graphics_cards.fit import CardFit, best_fit
from build_engines.graphics_cards.report import fit_object, layers_text
from build_engines.listed_classes import releases_with
from build_engines.model_entry import ModelEntry
from build_engines.model_source import on_this_cpu
from build_engines.presets import read_presets
from build_engines.progress import size_text
from build_engines.store import Stored, stored
from build_engines.tables import terminal_width, text_table
from model_repository.model_facts import Task
from model_repository.model_parameters import Preset
from model_repository.system.home import add_home
from model_repository.system.running_servers import running_servers

_ON_GPUS = "on GPUs"
_STORE_HEADER = ("model", "artifact", "size", "task", "context", "runtime", "aliases, defaults", "served at")
_HEADER = ("model", "short name", "params", "task", "context", "on this CPU", _ON_GPUS, "tools", "thinking", "license")
# Columns that a narrow terminal does without, the first one first.
_DISPENSABLE = ("thinking", "tools", "license", _ON_GPUS, "task", "runtime", "aliases, defaults", "params", "context")
TOO_LARGE = "no: too large"
_EXAMPLES = """\
examples:
  conch list                             the models of this machine
  conch list --all                       also the catalog
  conch list --home /srv/conch           another store
  conch list --all --catalog FILE.yaml   also the models of a file
  conch list --all --gpu rtx3060-12gb    the catalog, with the part of each model that fits a graphics card
  conch list --json                      everything, with all fields of the catalog
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "list",
        help="show the models of this machine, or the catalog too",
        description="Show the artifacts and presets of the store, with the servers that serve them. --all adds the "
        "models of the catalog, which `pull`, `serve` and `plan` find by name: models of today, then older ones, and "
        "first those for which the memory of this machine has room on the CPU, or with --gpu that of a graphics card. "
        "A narrow terminal shows fewer columns.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_home(command, "with artifacts/")
    add_catalog_option(command)
    command.add_argument("--all", action="store_true", help="show the catalog too")
    gpu_help = "with --all or --json: a graphics card, as `plan` lists them; models that fit it come first"
    command.add_argument("--gpu", choices=CARDS, metavar="CARD", help=gpu_help)
    command.add_argument("--json", action="store_true", help="print everything as JSON")
    command.set_defaults(command=_list)


def _list(options: argparse.Namespace) -> None:
    for name, value in (("--catalog", options.catalog and options.catalog[0]), ("--gpu", options.gpu)):
        if value and not (options.all or options.json):
            raise BuildError(f"{name} {value}: goes with --all or --json")
    card = CARDS.get(options.gpu)
    artifacts, presets, servers = list(stored(options.home)), read_presets(options.home), running_servers(options.home)
    urls = {name: server.url for server in servers for name in server.models}
    entries = sorted(Catalog.load(*options.catalog), key=lambda entry: _is_too_large(entry, card))
    if options.json:
        models = [
            dataclasses.asdict(entry)
            | {
                "num_parameters": entry.architecture.num_parameters,
                "task": entry.task,
                "on_this_cpu": on_this_cpu(entry),
            }
            | ({} if card is None else {"on_card": fit_object(best_fit(entry, card))})
            for entry in entries
        ]
        of_store = {"artifacts": [_object(each) for each in artifacts], "presets": to_builtins(presets)}
        print(json.dumps({**of_store, "models": models}, indent=2))
        return
    width = terminal_width()
    rows = [_store_row(each) for each in artifacts]
    rows += [_preset_row(model_id, *each, urls) for model_id, named in presets.items() for each in named.items()]
    if rows:
        print("\n".join(text_table(_STORE_HEADER, rows, width, _DISPENSABLE)))
    else:
        print("The store is empty: `conch run demo` builds the demo model, and `conch run OWNER/NAME` one of the hub.")
    if not options.all:
        if not artifacts or width < math.inf:
            print("`conch list --all` shows the catalog.")
        return
    for title, is_older in (("Models of today", False), ("Older models", True)):
        rows = [_row(entry, card) for entry in entries if entry.is_older is is_older]
        header = _HEADER if card is None else [f"on {card.name}" if head == _ON_GPUS else head for head in _HEADER]
        print("\n".join(("", title, *text_table(header, rows, width, _DISPENSABLE))))


def _is_too_large(entry: ModelEntry, card: Card | None) -> bool:
    """Whether a model has no room on this CPU, or on a card."""
    return on_this_cpu(entry) is None if card is None else not best_fit(entry, card).is_whole


def _store_row(artifact: Stored) -> tuple[str, ...]:
    manifest, begin = artifact.manifest, (artifact.model_id, artifact.folder.name, size_text(artifact.size_bytes))
    if manifest is None:
        return (*begin, "", "", "", "", artifact.error)
    return (
        *begin,
        manifest.task,
        str(manifest.context_window),
        f"{manifest.runtime} {manifest.precision}",
        " ".join((*manifest.serving.aliases, *assignments(manifest.defaults))),
        "" if artifact.server is None else artifact.server.url,
    )


def _preset_row(model_id: str, name: str, preset: Preset, urls: Mapping[str, str]) -> tuple[str, ...]:
    values = " ".join(assignments(preset.defaults))
    return (name, f"preset of {model_id}", "", Task.GENERATE, "", "", values, urls.get(name, ""))


def _row(entry: ModelEntry, card: Card | None) -> tuple[str, ...]:
    return (
        entry.model_id,
        entry.tag,
        weights_text(entry.architecture.num_parameters),
        entry.task,
        str(entry.seq_len_limit),
        on_this_cpu(entry) or TOO_LARGE,
        on_gpus(entry) if card is None else _on_card(best_fit(entry, card)),
        entry.tool_call_format,
        entry.reasoning_format,
        entry.terms,
    )


def assignments(values: Mapping[str, object]) -> list[str]:
    """Return defaults as `--default` takes them."""
    return [f"{name}={json.dumps(value)}" for name, value in values.items()]


def weights_text(num_weights: int) -> str:
    """Return a number of weights with its unit."""
    return f"{num_weights / 1e9:.1f} B" if num_weights >= 1e9 else f"{num_weights / 1e6:.1f} M"


def _on_card(fit: CardFit) -> str:
    return fit.quantization if fit.is_whole else f"{fit.quantization}, {layers_text(fit)} layers"


def on_gpus(entry: ModelEntry) -> str:
    """Return how TensorRT-LLM serves a model on GPUs."""
    if not entry.backends:
        return "no"
    named = releases_with(entry.architecture.class_name)
    releases = f" (TensorRT-LLM {' and '.join(named)})" if len(named) == 1 and entry.family is None else ""
    return f"{', '.join(entry.backends)}: {', '.join(entry.precisions)}{releases}"


def _object(artifact: Stored) -> dict[str, object]:
    return {
        "model_id": artifact.model_id,
        "folder": str(artifact.folder),
        "size_bytes": artifact.size_bytes,
        "url": None if artifact.server is None else artifact.server.url,
        "error": artifact.error or None,
    }
