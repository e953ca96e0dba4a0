"""Key files whose keys are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from frontend.access.key_file import dump_keys
from frontend.access.keys import Key
from frontend.access.secret import hash_of, new_key


class KeyFile:
    """A key file, and the keys themselves by their names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.texts: dict[str, str] = {}
        self._keys: list[Key] = []

    def add(self, name: str, **fields: Any) -> str:
        """Put a key into the file, and return it."""
        text = self.texts[name] = new_key()
        self._keys.append(Key(name=name, sha256=hash_of(text), **fields))
        self.path.write_bytes(dump_keys(self._keys))
        return text

    def headers(self, name: str, **more: str) -> dict[str, str]:
        """Return the headers of a request with this key."""
        return {"Authorization": f"Bearer {self.texts[name]}"} | more
