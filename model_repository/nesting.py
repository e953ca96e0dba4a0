"""How deep a JSON value is nested: level by level, since one that is too deep must not be walked by recursion."""

from __future__ import annotations

from collections.abc import Iterator


def levels(value: object) -> Iterator[list[object]]:
    """Yield the values that stand in no other, then those that stand in one, and so on."""
    level = [value]
    while level:
        yield level
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [inner for item in containers for inner in (item.values() if isinstance(item, dict) else item)]
