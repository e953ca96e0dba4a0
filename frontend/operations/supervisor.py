"""The process that every worker listens to: the parent of several, or the only one itself."""

from __future__ import annotations

import contextlib
import os
import signal

RELOAD_KEYS = signal.SIGHUP  # look at the key file now
BEGIN_DRAIN = signal.SIGUSR1  # take no more requests, but do not end yet


class Supervisor:
    """Carries what one worker was told to all of them.

    Args:
        pid: of the process that hands its signals on to the workers.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def reload_keys(self) -> None:
        """Have every worker look at the key file now, instead of within a second."""
        os.kill(self._pid, RELOAD_KEYS)

    def begin_drain(self) -> None:
        """Have every worker begin its drain."""
        with contextlib.suppress(ProcessLookupError):  # it is gone, which each of them notices
            os.kill(self._pid, BEGIN_DRAIN)
