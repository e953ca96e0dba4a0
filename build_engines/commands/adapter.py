"""`adapter`: converts a LoRA adapter that a running server can load."""

from __future__ import annotations

import argparse
import pkgutil
from pathlib import Path

from build_engines import artifact
from build_engines.artifact import Manifest
from build_engines.commands.plan import add_catalog_option
from build_engines.digests import Digests
from build_engines.errors import BuildError
from build_engines.peft import LoraAdapter
from model_repository.engine.adapters.folder import MANIFEST, AdapterManifest
from model_repository.runtimes import RUNTIMES


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "adapter",
        help="convert a LoRA adapter for loading into a running server",
        description="Check a LoRA adapter in PEFT's format against the model of an artifact, and write it for the "
        "model's runtime. A server whose repository was rendered with --adapter-root loads adapters below that folder "
        "(docs/adapters.md).",
        epilog="example: conch adapter adapters/formal --artifact ARTIFACT --output served/formal",
    )
    command.add_argument("source", type=Path, metavar="DIR", help="the adapter in PEFT's format")
    command.add_argument("--artifact", type=Path, required=True, metavar="DIR", help="the model's artifact")
    command.add_argument("--output", type=Path, required=True, metavar="DIR", help="target, ROOT/NAME")
    add_catalog_option(command)
    command.set_defaults(command=_adapter)


def _adapter(options: argparse.Namespace) -> None:
    manifest = build_adapter(options.source, options.artifact, options.output, tuple(options.catalog))
    print(f"adapter     {options.output} (rank {manifest.rank})")


def build_adapter(source: Path, artifact_dir: Path, target: Path, catalogs: tuple[Path, ...] = ()) -> AdapterManifest:
    """Check an adapter against the model of an artifact, and write it for the model's runtime.

    Args:
        source: a folder in PEFT's format.
        artifact_dir: the model's.
        target: a new folder, or an adapter from an earlier call.
        catalogs: files with further models, for tensorrt_llm.

    Raises:
        BuildError: names the file or the field, and the rule.
    """
    if target.exists() and not (target / MANIFEST).is_file():
        raise BuildError(f"{target}: is there already, and holds no adapter: name another folder")
    model = Manifest.load(artifact_dir)
    entry = RUNTIMES[model.runtime]
    if not entry.adapter_writer:
        raise BuildError(f"{artifact_dir}: the runtime {model.runtime} takes no adapters")
    adapter = LoraAdapter.load(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    with artifact.written_aside(target) as folder:
        modules = pkgutil.resolve_name(entry.adapter_writer)(adapter, folder, artifact_dir, catalogs)
        manifest = AdapterManifest(
            runtime=model.runtime,
            base=model.base,
            rank=adapter.rank,
            modules=modules,
            files=Digests().of_all({path.name: path for path in sorted(folder.iterdir())}),
        )
        manifest.save(folder)
    return manifest
