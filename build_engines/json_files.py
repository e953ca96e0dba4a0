"""JSON files of a checkpoint or an artifact."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build_engines.errors import BuildError


def read_json(path: Path, *, is_optional: bool = False) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one when it is optional and missing.

    Raises:
        BuildError: the file is missing, or not a JSON object.
    """
    if is_optional and not path.exists():
        return {}
    value = _read(path)
    if not isinstance(value, dict):
        raise BuildError(f"{path}: expected a JSON object")
    return value


def is_below(path: str) -> bool:
    """Whether a path in a file or of the hub stays in its folder."""
    parts = Path(path).parts
    return "\0" not in path and ".." not in parts and "/" not in parts[:1]


def class_of(config: Mapping[str, Any]) -> str:
    """Return the class of a model; `none` if config.json names none."""
    return str((config.get("architectures") or ["none"])[0])


def read_json_list(path: Path) -> list[Any]:
    """Return the list in a JSON file.

    Raises:
        BuildError: the file is missing, or not a JSON list.
    """
    value = _read(path)
    if not isinstance(value, list):
        raise BuildError(f"{path}: expected a JSON list")
    return value


def _read(path: Path) -> Any:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair is no character
        return value
    except FileNotFoundError as exc:
        raise BuildError(f"{path}: no such file") from exc
    except (ValueError, RecursionError) as exc:
        raise BuildError(f"{path}: not JSON ({exc})") from exc
