"""`adapter`: a LoRA adapter that a server can load while it runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from build_engines.adapter import build_adapter


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "adapter",
        help="turn a LoRA adapter into one that a server of its model can load while it runs",
        description="Check a LoRA adapter in PEFT's format against the model of an artifact, and write it as the "
        "model's runtime takes it. A server whose repository was rendered with --adapter-root loads it from below "
        "that folder (docs/adapters.md).",
    )
    command.add_argument("source", type=Path, metavar="DIR", help="the adapter, as PEFT saved it")
    command.add_argument("--artifact", type=Path, required=True, metavar="DIR", help="the model, as `build` made it")
    command.add_argument("--output", type=Path, required=True, metavar="DIR", help="ROOT/NAME: where it goes")
    command.add_argument(
        "--catalog", action="append", default=[], type=Path, metavar="FILE", help="as for `build`; repeatable"
    )
    command.set_defaults(command=_adapter)


def _adapter(options: argparse.Namespace) -> None:
    manifest = build_adapter(options.source, options.artifact, options.output, tuple(options.catalog))
    print(f"adapter     {options.output} (rank {manifest.rank})")
