"""API keys and the key file: JSON with each key's hash and rights; read strictly, written whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AwareDatetime, ConfigDict, Field, TypeAdapter, ValidationError

from frontend.caller import Caller, Role
from frontend.errors import shown
from frontend.settings import SettingsError

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$")]
_Pattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9*][A-Za-z0-9._:/*-]{0,255}$")]
_Word = Annotated[str, Field(pattern=r"^[!-~]{1,128}$")]  # what can stand in a header

PREFIX = "conch_"  # so that people and scanners for leaked secrets recognise a key
_NUM_RANDOM_BYTES = 32
_ID_DIGITS = 16
_MAX_LIMIT = 2**31 - 1
_UNKNOWN = "unexpected_keyword_argument"  # pydantic's word for such a field
# A key that was put where its hash or its name belongs, or in a field of its own, must not come back in a message.
_SHOWN_FIELDS = {"role", "models", "organizations", "projects", "limits", "created_at", "expires_at"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLimits:
    """Limits of one key; None: the key has no such limit of its own. The admission enforces them."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    requests_per_minute: Annotated[int, Field(ge=1, le=_MAX_LIMIT)] | None = None
    tokens_per_minute: Annotated[int, Field(ge=1, le=_MAX_LIMIT)] | None = None
    max_concurrent: Annotated[int, Field(ge=1, le=_MAX_LIMIT)] | None = None  # requests under way
    max_priority: Annotated[int, Field(ge=0, le=_MAX_LIMIT)] | None = None  # that its requests may ask for


NO_LIMITS = KeyLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key as the key file has it: its hash, and what it may do."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    name: Name
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    role: Role = Role.USER
    models: tuple[_Pattern, ...] = ()  # empty: all
    organizations: tuple[_Word, ...] = ()  # empty: the key is bound to none; else the first is the default
    projects: tuple[_Word, ...] = ()  # likewise
    limits: KeyLimits = NO_LIMITS
    created_at: AwareDatetime | None = None
    expires_at: AwareDatetime | None = None

    @property
    def id(self) -> str:
        """What logs and limits know the key by."""
        return id_of(self.sha256)

    def has_expired(self, now: datetime) -> bool:
        """Whether it is too late to use the key."""
        return self.expires_at is not None and now >= self.expires_at

    def caller(self) -> Caller:
        """Return who uses the key; the request names organization and project."""
        return Caller(
            name=self.name,
            id=self.id,
            role=self.role,
            models=self.models,
        )


def new_key() -> str:
    """Return a new key: the prefix and 256 random bits."""
    return PREFIX + secrets.token_urlsafe(_NUM_RANDOM_BYTES)


def hash_of(text: str) -> str:
    """Return what is kept of a key.

    A fast hash without salt will do: against 256 random bits there is neither a dictionary nor a table.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def id_of(sha256: str) -> str:
    """Return what logs and limits know the key with this hash by."""
    return sha256[:_ID_DIGITS]


class KeyFileError(SettingsError):
    """A key file cannot be read or written, or breaks a rule: the message names file, key, field, value and rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    keys: tuple[Key, ...]


_DOCUMENT = TypeAdapter(_Document)


def read_keys(path: Path) -> tuple[Key, ...]:
    """Return the keys of a file.

    Raises:
        KeyFileError: it cannot be read, or breaks a rule.
    """
    return parse_keys(read_content(path), path)


def read_content(path: Path) -> bytes:
    """Return what is in the file.

    Raises:
        KeyFileError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as exc:
        raise KeyFileError(f"{path}: cannot be read: {exc.strerror or exc}") from exc


def parse_keys(content: bytes, path: Path) -> tuple[Key, ...]:
    """Return the keys in the content of a file.

    Args:
        path: for the message.

    Raises:
        KeyFileError: a rule is broken.
    """
    try:
        raw = json.loads(content, object_pairs_hook=_object_without_duplicates)
    except _DuplicateField as exc:
        raise KeyFileError(f"{path}: an object has the field {shown(exc.args[0])} twice") from None
    except (ValueError, RecursionError) as exc:
        where = f" (line {exc.lineno}, column {exc.colno})" if isinstance(exc, json.JSONDecodeError) else ""
        raise KeyFileError(f"{path}: is not JSON in UTF-8{where}") from None
    try:
        keys = _DOCUMENT.validate_json(content).keys
    except ValidationError as exc:
        raise KeyFileError(f"{path}: {_first_failure(exc, raw)}") from None
    _refuse_twins(keys, path)
    return keys


@contextlib.contextmanager
def editing(path: Path) -> Iterator[list[Key]]:
    """Yield the keys of a file as a list to change, then write it; a file that is not there has no keys.

    One editor at a time: others wait. Readers see the old file or the new one.

    Raises:
        KeyFileError: the file cannot be read or written, or the changed keys break a rule.
    """
    path = path.resolve()  # the file, not a link to it, is replaced
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
    return _DOCUMENT.dump_json(_Document(keys=tuple(keys)), indent=2, exclude_defaults=True) + b"\n"


def _replace(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # with mode 0600
    try:
        with open(handle, "wb") as file:
            if path.exists():  # whoever reads the old file shall be able to read the new one
                owner = path.stat()
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


class _DuplicateField(Exception):
    """A JSON object has a field twice."""


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _DuplicateField(name)
        found[name] = value
    return found


def _first_failure(exc: ValidationError, raw: Any) -> str:
    error = exc.errors(include_url=False)[0]
    loc = error["loc"]
    place, fields = "", loc
    if len(loc) >= 2 and loc[0] == "keys" and isinstance(loc[1], int):
        entry, fields = raw["keys"][loc[1]], loc[2:]
        name = entry.get("name") if isinstance(entry, dict) else None
        place = f"key {shown(name) if _is_showable(name) else f'number {loc[1] + 1}'}: "
    field = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in fields).removeprefix(".")
    is_shown = bool(fields) and fields[0] in _SHOWN_FIELDS and error["type"] not in ("missing", _UNKNOWN)
    value = f"={shown(error['input'])}" if is_shown and PREFIX not in str(error["input"]) else ""
    rule = "unknown field" if error["type"] == _UNKNOWN else error["msg"]
    return f"{place}{f'{field}{value}: ' if field else ''}{rule}"


def _is_showable(name: Any) -> bool:
    return isinstance(name, str) and PREFIX not in name


def _refuse_twins(keys: Sequence[Key], path: Path) -> None:
    names: set[str] = set()
    by_id: dict[str, str] = {}
    for key in keys:
        if key.name in names:
            raise KeyFileError(f"{path}: key {shown(key.name)}: name: another key has it")
        if key.id in by_id:
            raise KeyFileError(f"{path}: key {shown(key.name)}: sha256: it is that of key {shown(by_id[key.id])}")
        names.add(key.name)
        by_id[key.id] = key.name
