"""Waiting for what happens in other processes and threads."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_S = 300.0  # only a hang reaches it, however busy the machine is


def wait_until(is_true: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
    """Poll until a condition holds; fail when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s in vain: {what}"
        time.sleep(0.01)
