"""What `python -m frontend keys` does: makes, lists and removes the keys of a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta

from frontend.caller import Role
from frontend.gateway.key_file import Key, KeyFileError, KeyLimits, editing, hash_of, new_key, read_keys
from frontend.gateway.key_ring import utc_now


def _add(options: argparse.Namespace) -> None:
    text, now = new_key(), utc_now()
    limits = {limit.name: getattr(options, limit.name) for limit in fields(KeyLimits)}
    key = Key(
        name=options.name,
        sha256=hash_of(text),
        role=Role(options.role),
        models=tuple(options.model),
        organizations=tuple(options.organization),
        projects=tuple(options.project),
        limits=KeyLimits(**limits),
        created_at=now.replace(microsecond=0),
        expires_at=_expiry(now, options.expires_in_days),
    )
    with editing(options.file) as keys:
        keys.append(key)
    sys.stdout.write(f"{text}\n")
    sys.stderr.write(f"This is the key {key.name}. It is not kept anywhere: {options.file} has its SHA-256 only.\n")


def _list(options: argparse.Namespace) -> None:
    for key in read_keys(options.file):
        limits = [f"{name}={value}" for name, value in asdict(key.limits).items() if value is not None]
        words = [f"{key.name:<20}", key.id, f"{key.role:<5}", f"models: {', '.join(key.models) or 'all'}"]
        words += [f"organizations: {', '.join(key.organizations)}"] if key.organizations else []
        words += [f"projects: {', '.join(key.projects)}"] if key.projects else []
        words += [f"limits: {', '.join(limits)}"] if limits else []
        words += [_life(key)] if key.expires_at else []
        sys.stdout.write("  ".join(words) + "\n")


def _remove(options: argparse.Namespace) -> None:
    read_keys(options.file)  # one that is not there has nothing to remove
    with editing(options.file) as keys:
        left = [key for key in keys if key.name != options.name]
        if len(left) == len(keys):
            raise KeyFileError(f"--name={options.name}: {options.file} has no key of this name; `keys list` shows them")
        keys[:] = left


def _expiry(now: datetime, days: float | None) -> datetime | None:
    if days is None:
        return None
    if not 0 < days <= 36500:
        raise KeyFileError(f"--expires-in-days={days:g}: must be above 0 and at most 36500")
    return (now + timedelta(days=days)).replace(microsecond=0)


def _life(key: Key) -> str:
    assert key.expires_at is not None
    word = "expired" if key.has_expired(utc_now()) else "expires"
    return f"{word} {key.expires_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


ACTIONS: Mapping[str, Callable[[argparse.Namespace], None]] = {"add": _add, "list": _list, "remove": _remove}
