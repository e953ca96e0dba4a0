"""API keys and the key file: JSON with the hash and the rights of each key."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from frontend.caller import Caller, KeyRole
from frontend.errors import shown
from frontend.settings import SettingsError

type _Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._@-]{0,63}\Z")]
type _ModelPattern = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9*][A-Za-z0-9._:/*-]{0,255}\Z")]
type _HeaderValue = Annotated[str, Meta(pattern=r"\A[!-~]{1,128}\Z")]
type _Limit = Annotated[int, Meta(ge=1, le=2**31 - 1)]
type _Time = Annotated[datetime, Meta(tz=True)]

PREFIX = "conch_"  # people and scanners for leaked secrets recognise a key by it
_NUM_RANDOM_BYTES = 32
_NUM_ID_DIGITS = 16


class KeyLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of one key; None: the settings apply."""

    requests_per_minute: _Limit | None = None
    tokens_per_minute: _Limit | None = None
    max_concurrent: _Limit | None = None  # completions in flight
    max_priority: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None  # 0: normal, else high


class Key(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An entry of the key file."""

    name: _Name
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    role: KeyRole = KeyRole.USER
    models: tuple[_ModelPattern, ...] = ()  # empty: all
    organizations: tuple[_HeaderValue, ...] = ()  # empty: any; else the first is the default
    projects: tuple[_HeaderValue, ...] = ()  # empty: any; else the first is the default
    limits: KeyLimits = KeyLimits()
    owner: Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")] = ""  # random; empty, in older files: the key's id
    created_at: _Time | None = None
    expires_at: _Time | None = None

    @property
    def id(self) -> str:
        """The identity of the key in logs and limits."""
        return id_of(self.sha256)

    def has_expired(self, now: datetime) -> bool:
        """Return whether the key is out of date."""
        return self.expires_at is not None and now >= self.expires_at

    def caller(self) -> Caller:
        """Return the caller of a request with this key, without organization and project."""
        return Caller(name=self.name, id=self.id, owner=self.owner or self.id, role=self.role, models=self.models)


class _Document(Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[Key, ...]


class KeyFileError(SettingsError):
    """A key file cannot be read or written, or breaks a rule."""


def new_key() -> str:
    """Return a new key: the prefix and 256 random bits."""
    return PREFIX + secrets.token_urlsafe(_NUM_RANDOM_BYTES)


def new_owner() -> str:
    """Return a random name for the owner of stored objects."""
    return secrets.token_hex(16)


def hash_of(text: str) -> str:
    """Return the hash of a key. 256 random bits need no salt and no slow hash: dictionaries and tables cannot help."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def id_of(sha256: str) -> str:
    """Return the identity of the key with this hash."""
    return sha256[:_NUM_ID_DIGITS]


def read_keys(path: Path) -> tuple[Key, ...]:
    """Return the keys of a file, or raise KeyFileError."""
    return parse_keys(read_content(path), path)


def read_content(path: Path) -> bytes:
    """Return the content of a file, or raise KeyFileError."""
    try:
        return path.read_bytes()
    except OSError as exc:
        raise KeyFileError(f"{path}: cannot be read: {exc.strerror or exc}") from exc


def parse_keys(content: bytes, path: Path) -> tuple[Key, ...]:
    """Return the keys in the content of a file.

    Raises:
        KeyFileError: the message names file, place and rule, and contains no API key.
    """
    try:
        keys = msgspec.convert(json.loads(content.decode(), object_pairs_hook=_unique_fields), _Document).keys
    except msgspec.ValidationError as exc:
        rule = str(exc) if PREFIX not in str(exc) else "an API key stands in the place of another value"
        raise KeyFileError(f"{path}: {rule}") from None
    except (ValueError, RecursionError) as exc:
        where = f" (line {exc.lineno}, column {exc.colno})" if isinstance(exc, json.JSONDecodeError) else ""
        raise KeyFileError(f"{path}: is not JSON in UTF-8{where}") from None
    seen: set[tuple[str, str]] = set()
    for key in keys:
        for field, value in (("name", key.name), ("sha256", key.id)):
            if (field, value) in seen:
                raise KeyFileError(f"{path}: key {shown(key.name)}: {field}: another key has the same")
            seen.add((field, value))
    return keys


@contextlib.contextmanager
def editing(path: Path) -> Iterator[list[Key]]:
    """Yield the keys of a file as a list to change, then write it. A missing file has no keys.

    Editors wait for each other. Readers see the old file or the new one. All failures are KeyFileErrors.
    """
    path = path.resolve()  # a link stays a link
    try:
        with path.with_name(f".{path.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = list(read_keys(path)) if path.exists() else []
            yield keys
            content = dump_keys(keys)
            parse_keys(content, path)
            _replace(path, content)
    except OSError as exc:
        raise KeyFileError(f"{path}: cannot be written: {exc.strerror or exc}") from exc


def dump_keys(keys: Sequence[Key]) -> bytes:
    """Return the content of a key file."""
    return msgspec.json.format(msgspec.json.encode(_Document(tuple(keys))), indent=2) + b"\n"


def _replace(path: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp gives mode 0600
    try:
        with open(descriptor, "wb") as file:
            if path.exists():  # the server that reads the old file must be able to read the new one
                owner = path.stat()
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = next(name for name in fields if sum(name == other for other, _ in pairs) > 1)
        raise msgspec.ValidationError(f"an object has the field {shown(twice)} twice")
    return fields
