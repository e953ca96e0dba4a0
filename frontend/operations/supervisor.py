"""The process that every worker listens to: the parent of several, or the only one itself."""

from __future__ import annotations

import os
import signal

RELOAD_KEYS = signal.SIGUSR1
DRAIN = signal.SIGTERM


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

    def begin(self) -> None:
        """Begin the drain of every worker, as a signal to end would."""
        os.kill(self._pid, DRAIN)
