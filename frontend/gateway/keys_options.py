"""The command line of `python -m frontend keys`. What it does is imported when it is asked for, since it takes long."""

from __future__ import annotations

import argparse
from pathlib import Path

LIMITS = ("requests_per_minute", "tokens_per_minute", "max_concurrent", "max_priority")

_SETS = (
    ("model", "that it may use, or a pattern such as my-org/*; repeatable; none: every model"),
    ("organization", "that it is for; repeatable; the first is the default"),
    ("project", "likewise"),
)


def add_actions(command: argparse.ArgumentParser) -> None:
    """Add the actions of `keys`."""
    actions = command.add_subparsers(required=True, metavar="ACTION")
    add = _action(actions, "add", "make a key, keep its hash in the file and print the key: this once, never again")
    add.add_argument("--name", required=True, metavar="N", help="by which logs and `keys list` know it")
    add.add_argument("--role", choices=("user", "admin"), default="user", help="admin opens the admin routes (user)")
    for name, text in _SETS:
        add.add_argument(f"--{name}", action="append", default=[], metavar=name.upper(), help=text)
    for limit in LIMITS:
        add.add_argument(f"--{limit.replace('_', '-')}", type=int, metavar="N", help="none unless set")
    add.add_argument("--expires-in-days", type=float, metavar="DAYS", help="never unless set")
    _action(actions, "list", "show the names and rights of the keys")
    remove = _action(actions, "remove", "take a key out of the file: a running server refuses it within a second")
    remove.add_argument("--name", required=True, metavar="N")


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str
) -> argparse.ArgumentParser:
    action = actions.add_parser(name, help=text, description=text)
    action.add_argument("--file", type=Path, required=True, metavar="F", help="the key file")
    action.set_defaults(command=_run, action=name)
    return action


def _run(options: argparse.Namespace) -> int:
    from frontend.gateway.keys_command import ACTIONS

    ACTIONS[options.action](options)
    return 0
