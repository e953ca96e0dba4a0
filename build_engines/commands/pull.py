"""`pull`: models into the store, for a later `serve`."""

from __future__ import annotations

import argparse
import dataclasses

from build_engines.commands.build import MODELS, MODELS_HELP, add_artifact_options, built
from build_engines.render import ServeOptions
from build_engines.signals import ended_by_signals
from model_repository.system.home import add_home


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to a parser."""
    command = commands.add_parser(
        "pull",
        help="download models, and build their artifacts",
        usage="%(prog)s MODEL [MODEL ...] [options]",
        description=f"Download and convert models, as `serve` does for the same MODEL and options. {MODELS}",
        epilog="example: conch pull Qwen/Qwen2.5-0.5B-Instruct --precision q8_0",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("models", nargs="+", metavar="MODEL", help=MODELS_HELP)
    add_artifact_options(command)
    add_home(command, "for artifacts/")
    defaults = dataclasses.asdict(ServeOptions()) | {"llm_options": []}
    command.set_defaults(command=ended_by_signals()(built), ready=True, **defaults)
