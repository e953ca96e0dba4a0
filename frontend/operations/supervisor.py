"""The process that passes signals to all workers: their parent, or a single worker itself."""

from __future__ import annotations

import contextlib
import os

from frontend.supervision import BEGIN_DRAIN, RELOAD_KEYS


class Supervisor:
    """Sends a signal to all workers.

    Args:
        pid: of the process that passes its signals to the workers.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def reload_keys(self) -> None:
        """Have every worker read the key file now, instead of within a second."""
        os.kill(self._pid, RELOAD_KEYS)

    def begin_drain(self) -> None:
        """Have every worker begin its drain."""
        with contextlib.suppress(ProcessLookupError):  # the workers notice the end of their parent
            os.kill(self._pid, BEGIN_DRAIN)
