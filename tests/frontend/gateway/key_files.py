"""Key files for tests, with their keys in plain text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from frontend.gateway.key_file import Key, dump_keys, hash_of, new_key


class KeyFile:
    """A key file, and the keys themselves by their names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.texts: dict[str, str] = {}
        self._keys: list[Key] = []

    def add(self, name: str, **fields: Any) -> str:
        """Put a key into the file, and return it."""
        text = self.texts[name] = new_key()
        self._write([*self._keys, Key(name=name, sha256=hash_of(text), **fields)])
        return text

    def remove(self, name: str) -> None:
        """Take a key out of the file."""
        self._write([key for key in self._keys if key.name != name])

    def headers(self, name: str, **more: str) -> dict[str, str]:
        """Return the headers of a request with this key."""
        return {"Authorization": f"Bearer {self.texts[name]}"} | more

    def _write(self, keys: list[Key]) -> None:
        self._keys = keys
        self.path.write_bytes(dump_keys(keys))
