"""The error with which `serve` and `triton` do not start, or end."""

from __future__ import annotations

from collections.abc import Sequence


class LaunchError(Exception):
    """A reason not to start or go on. The message is for the person who runs the command.

    Args:
        message: the cause.
        log: the last log lines of the children, to be shown before it.
    """

    def __init__(self, message: str, log: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.log = log
