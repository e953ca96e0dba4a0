"""The parser of both command lines: an error is one line, with the nearest command, option or value."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn


def actions_by_flag(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the actions of a parser's options; argparse offers no other way to its own."""
    return {flag: action for action in parser._actions for flag in action.option_strings}


def is_repeatable(action: argparse.Action) -> bool:
    """Whether an option may be given several times."""
    return isinstance(action, argparse._AppendAction)


class CommandParser(argparse.ArgumentParser):
    """Parses a command and its options."""

    others: Mapping[str, str] = MappingProxyType({})  # commands of other programs, each with the way here
    commands: argparse._SubParsersAction[Any]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register("type", int, _whole_number)

    def add_subparsers(self, **options: Any) -> argparse._SubParsersAction[Any]:
        """Add the commands."""
        self.commands = super().add_subparsers(required=True, **options)
        return self.commands

    def parse_args(  # type: ignore[override]
        self, words: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Return the options of a command; end the program with status 2 at the first mistake."""
        words = sys.argv[1:] if words is None else list(words)
        command = words[0] if words else ""
        if command and not command.startswith("-") and command not in self.commands.choices:
            way = f"; {self.others[command]}" if command in self.others else ""
            self.error(f"{command}: no such command{way or did_you_mean(command, self.commands.choices)}")
        options, unknown = self.parse_known_args(words, namespace)
        if unknown:
            known = self.commands.choices[command].flags() if command in self.commands.choices else self.flags()
            flag = unknown[0].partition("=")[0]
            is_flag = flag.startswith("-")
            rule = f"no such option of {command}{did_you_mean(flag, known)}" if is_flag else "one word too many"
            self.error(f"{flag}: {rule}")
        return options

    def flags(self) -> list[str]:
        """Return the options of the command, and those of its own commands."""
        own = self.commands.choices.values() if hasattr(self, "commands") else ()
        return [*actions_by_flag(self), *(flag for command in own for flag in command.flags())]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"{value}: {expected_one_of(value, [*action.choices])}")

    def error(self, message: str) -> NoReturn:
        """End the program."""
        self.exit(2, f"error: {message} (--help lists the options)\n")


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number") from exc


def json_or_text(text: str) -> Any:
    """Return the value of an option NAME=VALUE: JSON, or else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def expected_one_of(word: str, words: Collection[str]) -> str:
    """Return the rule that a wrong word breaks."""
    return f"expected one of {', '.join(words)}{did_you_mean(word, words)}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the nearest of the known words, if one is near."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""
