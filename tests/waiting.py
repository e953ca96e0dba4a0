"""Waiting for what happens in other processes and threads."""

from __future__ import annotations

import time
from collections.abc import Callable

DEADLINE_S = 300.0  # only a hang reaches it, however busy the machine is


def wait_until[Value](
    condition: Callable[[], Value], what: str, timeout_s: float = DEADLINE_S, pause_s: float = 0.01
) -> Value:
    """Poll until a condition holds, and return its value; fail when it does not hold in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s in vain: {what}"
        time.sleep(pause_s)
    return value
