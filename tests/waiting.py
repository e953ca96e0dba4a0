"""Waiting for what happens in other processes and threads."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_S = 30.0  # for things that take milliseconds: only a hang reaches it


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    """Poll until a condition holds; fail when it never does."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S} s in vain: {what}"
        time.sleep(0.01)
