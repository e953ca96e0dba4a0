"""What the commands of this folder share that compare a few servers: their options, and tables that grow by rows."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def parser_of(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a module of this folder, with the folder for the results."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.workshop.load.{module}", description=description)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--output", type=Path, default=Path("bench-results"), metavar="DIR", help="(%(default)s)")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the options, and make the folder for the results."""
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    return options


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def say_row(cells: Sequence[str]) -> None:
    """Print a row of a table in Markdown."""
    say(f"| {' | '.join(cells)} |")


def say_heads(cells: Sequence[str]) -> None:
    """Print the heads of a table."""
    say_row(cells)
    say_row(["---"] * len(cells))
