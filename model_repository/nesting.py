"""The nesting of a JSON value, level by level: recursion could overflow the stack."""

from __future__ import annotations

from collections.abc import Iterator


def levels(value: object) -> Iterator[list[object]]:
    """Yield the outermost value, then the values inside it, and so on."""
    level = [value]
    while level:
        yield level
        containers = [item for item in level if isinstance(item, dict | list)]
        level = [inner for item in containers for inner in (item.values() if isinstance(item, dict) else item)]
