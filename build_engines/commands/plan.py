"""`plan`: the memory of a model, and the GPUs and graphics cards that it fits."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from build_engines.catalog import Catalog
from build_engines.checkpoint_entry import find_entry
from build_engines.errors import BuildError, DoesNotFit
from build_engines.gpus import GPUS
from build_engines.graphics_cards.cards import CARDS
from build_engines.graphics_cards.fit import fit_card, quantizations
from build_engines.graphics_cards.report import card_lines, fit_object
from build_engines.model_entry import ModelEntry, Precision
from build_engines.planner.overview import HEADER, Outcome, outcomes, page, row
from build_engines.planner.plan import DEFAULT_MAX_BATCH_SIZE, plan
from build_engines.planner.report import plan_lines, plan_object
from build_engines.tables import text_table
from model_repository.model_facts import Task

_EXAMPLES = """\
examples:
  conch plan llama3.1:70b --gpu h100                       the smallest layout that fits, with its arithmetic
  conch plan llama3.1:70b --gpu h100 --precision fp8       the same in FP8: half the GPUs, and a node has replicas
  conch plan qwen2.5:7b --gpu l40s --max-seq-len 8192      the number of sequences of 8192 tokens that fit
  conch plan Meta-Llama-3.1-405B-Instruct --gpu h100 --gpus 16 --nodes 2
  conch plan gemma2:27b                                    on every GPU, as a table
  conch plan Qwen/Qwen3-14B --gpu h100                     a model of the hub, by its config.json; or a folder
  conch plan                                               every model on every GPU
  conch plan my-model --catalog models.yaml --gpu a100     a model of a file
  conch plan qwen3:8b --gpu rtx4060ti-16gb                 the weights that fit a graphics card, with llama.cpp

The error for a model that does not fit names layouts that do. Weights are exact; workspace and runtime are estimates.
On a graphics card all sizes are estimates, and --max-batch-size is the number of sequences, --max-seq-len their window.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "plan",
        help="compute the memory of a model, its GPUs and its number of sequences",
        description="Plan TensorRT-LLM for a model of the catalog or of the hub, or llama.cpp on a graphics card. It "
        f"needs no GPU. The GPUs: {', '.join(GPUS)}. The graphics cards: {', '.join(CARDS)}.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = command.add_argument
    add("model", nargs="?", metavar="MODEL", help="name of the catalog (see `list`), OWNER/NAME of the hub, or FOLDER")
    add("--all", action="store_true", help="every model (as without MODEL)")
    add("--gpu", choices=[*GPUS, *CARDS], metavar="KIND", help="GPU or graphics card; without it, a table of all GPUs")
    add_layout_options(command)
    add("--precision", choices=[*map(str, Precision)], help="of the matrices (the model's 16-bit format)")
    add("--max-seq-len", type=int, metavar="N", help="tokens of prompt and completion together (the model's maximum)")
    add_catalog_option(command)
    add("--json", action="store_true", help="print everything as JSON")
    add("--markdown", action="store_true", help="with --all and nothing else: print docs/plans.md")
    command.set_defaults(command=_plan)


def add_layout_options(command: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the options of a layout over GPUs, which `build` has too."""
    add = command.add_argument
    add("--gpus", type=int, metavar="N", help="number of GPUs of all nodes together (the fewest that fit)")
    add("--nodes", type=int, metavar="N", help="number of nodes, of 8 GPUs at most (the fewest)")
    tensor_help = "with --gpus: GPUs that share each layer (the most that the model's shape allows in a node)"
    add("--tensor", type=int, metavar="N", help=tensor_help)
    batch_help = f"sequences in one step (the catalog's, else {DEFAULT_MAX_BATCH_SIZE})"
    add("--max-batch-size", type=int, metavar="N", help=batch_help)


def add_catalog_option(command: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the option that extends the catalog."""
    command.add_argument(
        "--catalog",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="further models, in the form of build_engines/catalog.yaml; repeatable",
    )


def _plan(options: argparse.Namespace) -> None:
    if options.all and options.model is not None:
        raise BuildError(f"--all: plans every model, not {options.model} alone")
    settings = {
        "precision": options.precision,
        "num_gpus": options.gpus,
        "num_nodes": options.nodes,
        "tp_size": options.tensor,
        "max_seq_len": options.max_seq_len,
        "max_batch_size": options.max_batch_size,
    }
    if options.markdown:
        given = (options.model, options.gpu, *settings.values())
        if not options.all or options.catalog or options.json or any(value is not None for value in given):
            raise BuildError("--markdown: goes with --all and nothing else")
        print(page(Catalog.load()), end="")
        return
    catalog = Catalog.load(*options.catalog)
    if options.gpu in CARDS:
        _plan_card(catalog, options)
        return
    if options.model is not None and options.gpu is not None:
        found = plan(_entry(catalog, options.model), GPUS[options.gpu], **settings)
        if options.json:
            print(json.dumps(plan_object(found, options.gpus), indent=2))
        else:
            print("\n".join(plan_lines(found, shutil.get_terminal_size().columns, options.gpus)))
        return
    generating = (entry for entry in catalog if entry.task == Task.GENERATE)
    entries = generating if options.model is None else [_entry(catalog, options.model)]
    gpus = GPUS.values() if options.gpu is None else [GPUS[options.gpu]]
    table = list(outcomes(entries, gpus, **settings))
    if all(outcome.plan is None for outcome in table):
        raise DoesNotFit(_refusal_of_all(table))
    if options.json:
        print(json.dumps([_outcome_object(outcome) for outcome in table], indent=2))
    else:
        _print_table(table)


def _plan_card(catalog: Catalog, options: argparse.Namespace) -> None:
    card, given = CARDS[options.gpu], vars(options)
    for name in ("gpus", "nodes", "tensor", "precision"):
        if given[name] is not None:
            raise BuildError(f"--{name} {given[name]}: goes with the GPUs of TensorRT-LLM, not with --gpu {card.key}")
    entries = catalog if options.model is None else [find_entry(catalog, options.model, None)]
    limits = {"max_window": options.max_seq_len, "max_sequences": options.max_batch_size}
    fits = [fit_card(entry, name, card, **limits) for entry in entries for name in quantizations(entry)]
    print(
        json.dumps([fit_object(fit) for fit in fits], indent=2) if options.json else "\n".join(card_lines(card, fits))
    )


def _entry(catalog: Catalog, model: str) -> ModelEntry:
    entry = find_entry(catalog, model, None)
    entry.check_generates()
    return entry


def _refusal_of_all(table: list[Outcome]) -> str:
    """Return the first reason, and the number of other reasons."""
    first, *others = dict.fromkeys(outcome.refusal for outcome in table)
    return f"{first} (and {len(others)} more, of other GPUs, models and precisions)" if others else first


def _print_table(table: list[Outcome]) -> None:
    print("\n".join(text_table(("GPU", *HEADER), ((outcome.gpu.name, *row(outcome)) for outcome in table))))
    refusals = dict.fromkeys(outcome.refusal for outcome in table if outcome.plan is None)
    if refusals:
        print("\n" + "\n".join(refusals))


def _outcome_object(outcome: Outcome) -> dict[str, object]:
    if outcome.plan is not None:
        return plan_object(outcome.plan)
    return {
        "model": outcome.entry.model_id,
        "gpu": outcome.gpu.key,
        "precision": outcome.precision.value,
        "refusal": outcome.refusal,
    }
