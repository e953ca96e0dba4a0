"""The log lines that the two processes of a stack write during a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.integration.stack import Stack


@contextmanager
def logged(stack: Stack) -> Iterator[list[str]]:
    """Collect what both children write."""
    lines: list[str] = []
    children = (stack.launcher.triton, stack.launcher.frontend)
    logs = [child._log for child in children]

    def collecting(log: Callable[[str], None]) -> Callable[[str], None]:
        def collect(line: str) -> None:
            lines.append(line)
            log(line)

        return collect

    for child, log in zip(children, logs, strict=True):
        child._log = collecting(log)
    try:
        yield lines
    finally:
        for child, log in zip(children, logs, strict=True):
            child._log = log
