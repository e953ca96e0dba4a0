"""The references of a JSON schema to its own parts, which become definitions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from model_repository.notations import steps_of
from model_repository.structured_output.refusal import decline, refuse

# One notation for each index, and no number that only Python accepts.
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")

MAX_REFS = 300  # llguidance's parser recurses over them on the native stack


class References:
    """The referenced parts of one schema, each as a definition with a name.

    A part has two definitions if one reference is combined with other keywords and another one is not. The first stays
    open for the properties of the other keywords.

    Args:
        root: the whole schema, as parsed from JSON.
        path: its name in messages.
    """

    def __init__(self, root: object, path: str) -> None:
        self._root = root
        self._path = path
        # By the path of a reference. Of several notations of a path the first is kept.
        self._names: dict[tuple[tuple[str, ...], bool], str] = {}
        self.by_name: dict[str, str] = {}  # the reference of each definition
        self._waiting: list[tuple[str, str, bool]] = []

    def add(self, reference: object, path: str, is_open: bool) -> str:
        """Return the name of the definition for a reference at a path."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            decline(f"{path}: {str(reference)[:100]}: only references into this schema are enforced, #/...")
        self.resolve(reference, path)
        key = (steps_of(reference), is_open)
        if key not in self._names:
            if len(self._names) == MAX_REFS:
                refuse(f"{path}: more than {MAX_REFS} definitions are referred to")
            name = self._names[key] = f"d{len(self._names)}"
            self.by_name[name] = reference
            self._waiting.append((name, reference, is_open))
        return self._names[key]

    def new(self) -> Iterator[tuple[str, Any, str, bool]]:
        """Yield name, part, path and openness of each definition added since the last call."""
        while self._waiting:
            name, reference, is_open = self._waiting.pop()
            yield name, *self.resolve(reference, reference), is_open

    def resolve(self, reference: str, path: str) -> tuple[Any, str]:
        """Return the referenced part, and its path."""
        names = steps_of(reference)
        target = self._root
        for name in names:
            if isinstance(target, dict) and name in target:
                target = target[name]
            elif isinstance(target, list) and _INDEX.fullmatch(name) and int(name) < len(target):
                target = target[int(name)]
            else:
                refuse(f"{path}: {reference[:100]}: there is nothing of that name")
        return target, ".".join([self._path, *names])
