"""Prints the chart's values for a model of the catalog on H100 or H200, with the layout of the planner.

python -m helm.generate.examples MODEL GPU
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from build_engines.catalog import Catalog
from build_engines.errors import CatalogError, DoesNotFit
from build_engines.gpus import GPUS
from build_engines.model_entry import ModelEntry
from build_engines.planner.plan import plan
from build_engines.planner.sizing import Plan
from model_repository.engine.tensorrt_llm.options import Backend

GPU_KEYS = ("h100", "h200")

_GIB = 2**30
_RAM_MARGIN = 1.1  # above the planner's estimate for a conversion
_LOADED_BYTES_PER_S = 0.25e9  # of slow shared storage
_SHORTEST_LOAD_S = 600


def examples() -> Mapping[str, str]:
    """Return the texts of the examples by file name: of each model on the GPUs that it fits."""
    texts = {}
    for entry, key in itertools.product(Catalog.load().built, GPU_KEYS):
        with contextlib.suppress(DoesNotFit):
            texts[f"{_object_name(entry)}-{key}.yaml"] = _text(plan(entry, GPUS[key]))
    return texts


def example_values(planned: Plan) -> dict[str, Any]:
    """Return the chart's values for a planned model."""
    entry, layout = planned.entry, planned.parallelism
    ram_gib = round(planned.build_ram_bytes * _RAM_MARGIN / _GIB) + 1
    model: dict[str, Any] = {
        "name": _object_name(entry),
        "servedName": entry.model_id,
        "engine": {
            "runtime": "tensorrt_llm",
            "backend": str(entry.backends[0]),
            "precision": str(planned.precision),
            "maxSeqLen": planned.max_seq_len,
            "maxBatchSize": planned.max_batch_size,
        },
        "source": {"huggingface": {"repo": entry.model_id, "revision": "main"}},
        "parallelism": {"tensor": layout.tp_size, "pipeline": layout.pp_size},
        "gpus": {"perNode": layout.num_gpus_per_node, "profile": planned.gpu.key},
        "shmSize": f"{2 + 2 * layout.num_gpus_per_node}Gi",
        "loadTimeoutSeconds": max(_SHORTEST_LOAD_S, round(planned.engine_bytes / _LOADED_BYTES_PER_S)),
    }
    if layout.num_nodes == 1:  # the default over several nodes
        model["strategy"] = {"maxSurge": 0, "maxUnavailable": 1}
    if Backend.ENGINE in entry.backends:
        model["build"] = {"enabled": True, "resources": {"requests": {"memory": f"{ram_gib}Gi"}}}
    values: dict[str, Any] = {"cache": {"type": "pvc", "size": f"{round(planned.build_disk_bytes * 1.2 / _GIB) + 1}Gi"}}
    if entry.is_gated:
        values["huggingface"] = {"existingSecret": "huggingface"}
    if layout.num_nodes > 1:
        values["multinode"] = {"sshKeySecret": "ranks"}
    return values | {"models": [model]}


def _text(planned: Plan) -> str:
    lines = [f"# {line}" for line in _comments(planned)]
    return "\n".join([*lines, yaml.safe_dump(example_values(planned), sort_keys=False, width=120).rstrip(), ""])


def _comments(planned: Plan) -> Iterator[str]:
    yield f"{planned.entry.model_id} on {planned.parallelism.num_gpus} x {planned.gpu.name}: {planned.parallelism}."
    yield f"Room for {planned.num_concurrent_sequences} sequences of {planned.max_seq_len} tokens, or more of shorter."
    yield f"Licence: {planned.entry.license}{', gated: needs a token' if planned.entry.is_gated else ''}."
    yield "Written by `python -m helm.generate.examples` from the catalog. Not yet run on a GPU."


def _object_name(entry: ModelEntry) -> str:
    return re.sub(r"[^a-z0-9]+", "-", entry.aliases[-1].lower())


def _entry(name: str) -> ModelEntry:
    catalog = Catalog.load().built
    try:
        return catalog.find(name)
    except CatalogError as exc:
        names = ", ".join(entry.aliases[-1] for entry in catalog)
        raise argparse.ArgumentTypeError(f"{name!r} does not name one model (choose from {names})") from exc


def main() -> None:
    """Print one example, or write all."""
    parser = argparse.ArgumentParser(
        prog="python -m helm.generate.examples", description="Print the chart's values for a model of the catalog."
    )
    parser.add_argument("model", nargs="?", type=_entry, help="id or alias of the model")
    parser.add_argument("gpu", nargs="?", choices=GPU_KEYS, help="kind of GPU")
    parser.add_argument("--all", type=Path, metavar="DIR", help="write the values of all models and GPUs into DIR")
    options = parser.parse_args()
    if [options.model, options.gpu].count(None) != (2 if options.all else 0):
        parser.error("expected a model and a GPU, or --all DIR")
    if not options.all:
        try:
            sys.stdout.write(_text(plan(options.model, GPUS[options.gpu])))
        except DoesNotFit as exc:
            parser.error(str(exc))
        return
    options.all.mkdir(parents=True, exist_ok=True)
    for name, text in examples().items():
        (options.all / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
