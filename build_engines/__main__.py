"""The command line that builds artifacts and renders the repository that Triton serves."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from build_engines.commands import adapter, build, list, plan, render, selfcheck, verify
from build_engines.errors import BuildError

COMMANDS = (list, plan, build, adapter, verify, render, selfcheck)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; an error is one line on stderr and status 1."""
    options = _parser().parse_args(arguments)
    logging.getLogger("gguf").setLevel(logging.WARNING)  # else it reports what ours reports already
    try:
        options.command(options)
    except (BuildError, OSError) as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m build_engines", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
