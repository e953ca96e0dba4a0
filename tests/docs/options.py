"""The commands of `conch` and their options, of both command lines."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from build_engines.__main__ import _parser as parser_of_build
from frontend.__main__ import _BUILD_COMMANDS
from frontend.__main__ import _parser as parser_of_frontend
from model_repository.system.command_parser import CommandParser


@functools.cache
def _parsers() -> tuple[CommandParser, CommandParser]:
    return parser_of_frontend(), parser_of_build()


def commands() -> set[str]:
    """Return the names of the commands."""
    return {name for parser in _parsers() for name in parser.commands.choices}


def options() -> set[str]:
    """Return the options of all commands."""
    return {flag for parser in _parsers() for flag in parser.flags()}


def parse(words: Sequence[str]) -> None:
    """Parse a command.

    Raises:
        SystemExit, SettingsError: it has a mistake.
    """
    of_frontend, of_build = _parsers()
    (of_build if words[0] in _BUILD_COMMANDS else of_frontend).parse_args(words)
