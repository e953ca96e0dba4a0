"""The command line that builds artifacts and renders the repository that Triton serves."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence

from build_engines.errors import BuildError
from model_repository.system.command_parser import CommandParser
from model_repository.system.llama_build import UnusableBuild
from model_repository.system.process_start import prepare_process
from model_repository.system.terminal_text import escape_output


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; an error is one line on stderr and status 1."""
    try:
        if arguments is None:
            prepare_process()
        escape_output()
        options = _parser().parse_args(arguments)
        for name in ("gguf", "httpx", "httpx2"):  # one line for each request to the hub
            logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger("huggingface_hub").propagate = False  # it has a handler of its own
        options.command(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit fails
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (BuildError, UnusableBuild, OSError) as exc:
        text = " ".join(str(exc).splitlines())  # one line, whatever a file names
        print(f"error: {text:.4000}", file=sys.stderr)
        return 1
    return 0


def _parser() -> CommandParser:
    # The import takes a second. Inside main(), Ctrl-C ends the program cleanly during it.
    from build_engines.commands import adapter, build, create, list, plan, pull, quantize, render, rm, show, verify

    parser = CommandParser(prog="conch", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in (list, show, pull, rm, create, plan, build, quantize, adapter, verify, render):
        command.add_to(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
