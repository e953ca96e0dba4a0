"""`adapter`: converts a LoRA adapter that a running server can load."""

from __future__ import annotations

import argparse
from pathlib import Path

from build_engines.adapter import build_adapter


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "adapter",
        help="convert a LoRA adapter for loading into a running server",
        description="Check a LoRA adapter in PEFT's format against the model of an artifact, and write it for the "
        "model's runtime. A server whose repository was rendered with --adapter-root loads adapters below that folder "
        "(docs/adapters.md).",
        epilog="example: conch adapter adapters/formal --artifact .conch/artifacts/demo-* --output served/formal",
    )
    command.add_argument("source", type=Path, metavar="DIR", help="the adapter in PEFT's format")
    command.add_argument("--artifact", type=Path, required=True, metavar="DIR", help="the model's artifact")
    command.add_argument("--output", type=Path, required=True, metavar="DIR", help="target, ROOT/NAME")
    command.add_argument(
        "--catalog",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="further models, as for `build`; repeatable",
    )
    command.set_defaults(command=_adapter)


def _adapter(options: argparse.Namespace) -> None:
    manifest = build_adapter(options.source, options.artifact, options.output, tuple(options.catalog))
    print(f"adapter     {options.output} (rank {manifest.rank})")
