"""The command `python -m frontend keys`: it adds, lists and removes the keys of a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from frontend.caller import KeyRole
from frontend.gateway.key_file import Key, KeyFileError, KeyLimits, editing, hash_of, new_key, new_owner, read_keys
from frontend.gateway.key_ring import utc_now

_LISTS = (
    ("model", "model that the key may use, or a pattern such as my-org/*; repeatable (every model)"),
    ("organization", "organization of the key; repeatable, the first is the default (any)"),
    ("project", "project of the key; repeatable, the first is the default (any)"),
)


def add_actions(command: argparse.ArgumentParser) -> None:
    """Add the actions of `keys` to the command line."""
    actions = command.add_subparsers(metavar="ACTION")

    def add_action(name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("--file", type=Path, required=True, metavar="F", help="the key file")
        action.set_defaults(command=run)
        return action

    add = add_action(
        "add", _add, "make a key, write its hash to the file and print the key, which cannot be shown again"
    )
    add.add_argument("--name", required=True, metavar="N", help="name of the key in logs and in `keys list`")
    add.add_argument("--role", choices=[role.value for role in KeyRole], default="user", help="(%(default)s)")
    for name, text in _LISTS:
        add.add_argument(f"--{name}", action="append", default=[], metavar=name.upper(), help=text)
    for limit in KeyLimits.__struct_fields__:
        add.add_argument(f"--{limit.replace('_', '-')}", type=int, metavar="N", help="(the server's setting)")
    add.add_argument("--expires-in-days", type=float, metavar="DAYS", help="(never)")
    add_action("list", _list, "show the names and rights of the keys")
    text = "remove a key; within a second a running server refuses it, and deletes what it stored for it"
    remove = add_action("remove", _remove, text)
    remove.add_argument("--name", required=True, metavar="N", help="name of the key")


def _add(options: argparse.Namespace) -> None:
    text, now = new_key(), utc_now()
    key = Key(
        name=options.name,
        sha256=hash_of(text),
        role=KeyRole(options.role),
        models=tuple(options.model),
        organizations=tuple(options.organization),
        projects=tuple(options.project),
        limits=KeyLimits(**{limit: getattr(options, limit) for limit in KeyLimits.__struct_fields__}),
        owner=new_owner(),
        created_at=now.replace(microsecond=0),
        expires_at=_expiry(now, options.expires_in_days),
    )
    with editing(options.file) as keys:
        keys.append(key)
    sys.stdout.write(f"{text}\n")
    sys.stderr.write(f"This is the key {key.name}. Keep it: {options.file} has only its SHA-256.\n")


def _list(options: argparse.Namespace) -> None:
    for key in read_keys(options.file):
        limits = [f"{name}={value}" for name, value in msgspec.to_builtins(key.limits).items()]
        words = [f"{key.name:<20}", key.id, f"{key.role:<5}", f"models: {', '.join(key.models) or 'all'}"]
        words += [f"organizations: {', '.join(key.organizations)}"] if key.organizations else []
        words += [f"projects: {', '.join(key.projects)}"] if key.projects else []
        words += [f"limits: {', '.join(limits)}"] if limits else []
        if key.expires_at:
            word = "expired" if key.has_expired(utc_now()) else "expires"
            words.append(f"{word} {key.expires_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC")
        sys.stdout.write("  ".join(words) + "\n")


def _remove(options: argparse.Namespace) -> None:
    read_keys(options.file)  # a missing file is an error here, and `editing` would create it
    with editing(options.file) as keys:
        left = [key for key in keys if key.name != options.name]
        if len(left) == len(keys):
            raise KeyFileError(f"--name={options.name}: {options.file} has no key of this name; `keys list` shows them")
        keys[:] = left
    stored = "Running servers delete what they stored for it; a server that starts later keeps that until it expires"
    sys.stderr.write(f"The key {options.name} is removed from {options.file}. {stored} (--store-age-s).\n")


def _expiry(now: datetime, days: float | None) -> datetime | None:
    if days is None:
        return None
    if not 0 < days <= 36500:
        raise KeyFileError(f"--expires-in-days={days:g}: must be above 0 and at most 36500")
    return (now + timedelta(days=days)).replace(microsecond=0)
