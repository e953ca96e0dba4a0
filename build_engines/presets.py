"""The presets of a home: further names of models, each with a system prompt and request defaults."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from build_engines.errors import BuildError
from build_engines.lock import lock_path, locked
from build_engines.serving import check_name
from model_repository.model_parameters import Preset, checked_defaults
from model_repository.system.command_parser import expected_one_of

_FILE = "presets.json"
_KEYS = ("from", "system", "default")  # of a preset in a file of models

type Presets = dict[str, dict[str, Preset]]  # by the model's id, then by name


def preset_of(system: str, defaults: Mapping[str, object]) -> Preset:
    """Check the values of a user.

    Raises:
        BuildError: a default breaks its rule.
    """
    try:
        return Preset(system=system, defaults=checked_defaults(defaults))
    except ValueError as exc:
        raise BuildError(f"default {exc}") from exc


def model_of(presets: Presets, name: str) -> str | None:
    """Return the id of a preset's model; None: there is no such preset."""
    return next((model_id for model_id, named in presets.items() if name in named), None)


def models_named(presets: Presets, names: Sequence[str]) -> list[str]:
    """Return names of models and presets with each preset's model in its place, unless that is there already."""
    models: list[str] = []
    for name in names:
        model_id = model_of(presets, name)
        if model_id is None or model_id not in (*models, *names):
            models.append(model_id or name)
    return models


def read_presets(home: Path) -> Presets:
    """Return the presets of a home.

    Raises:
        BuildError: the file has another form, or a default breaks its rule.
    """
    path = home / _FILE
    if not path.exists():
        return {}
    try:
        presets: Presets = msgspec.json.decode(path.read_bytes(), type=Presets.__value__)
        for preset in chain.from_iterable(named.values() for named in presets.values()):
            checked_defaults(preset.defaults)
    except (msgspec.DecodeError, ValueError) as exc:
        raise BuildError(f"{path}: not a file of presets ({exc})") from exc
    return presets


@contextlib.contextmanager
def changed_presets(home: Path) -> Iterator[Presets]:
    """Yield the presets of a home, and write them atomically after the block."""
    path = home / _FILE
    with locked(lock_path(path), f"changes {path}"):
        presets = read_presets(home)
        yield presets
        text = msgspec.json.format(msgspec.json.encode({name: each for name, each in presets.items() if each}))
        aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        aside.write_bytes(text + b"\n")
        aside.replace(path)


def presets_in(entries: Mapping[Any, Any], models: Mapping[Any, Any]) -> Presets:
    """Read the section `presets` of a file of models.

    Args:
        entries: by the presets' names.
        models: those of the file, by name.

    Raises:
        BuildError: names the preset, the key and the rule.
    """
    presets: Presets = {}
    for name, fields in entries.items():
        try:
            check_name("preset", str(name))
            model, preset = _entry(fields, models)
        except BuildError as exc:
            raise BuildError(f"presets.{name}: {exc}") from exc
        presets.setdefault(model, {})[str(name)] = preset
    return presets


def _entry(fields: object, models: Mapping[Any, Any]) -> tuple[str, Preset]:
    if not isinstance(fields, dict):
        raise BuildError(f"expected an object with {', '.join(_KEYS)}")
    for key in fields:
        if key not in _KEYS:
            raise BuildError(f"{key}: {expected_one_of(str(key), _KEYS)}")
    model, system, defaults = fields.get("from"), fields.get("system", ""), fields.get("default", {})
    if not isinstance(model, str) or model not in models:
        raise BuildError(f"from: {model}: expected a model of this file: one of {', '.join(map(str, models))}")
    if not isinstance(system, str):
        raise BuildError(f"system: {system!r:.100}: expected a text")
    if not isinstance(defaults, dict):
        raise BuildError(f"default: {defaults!r:.100}: expected an object")
    return model, preset_of(system.strip(), defaults)
