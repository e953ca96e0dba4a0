"""Signals between the processes of a frontend, and from the process that runs it."""

from __future__ import annotations

import signal

RELOAD_KEYS = signal.SIGHUP  # read the key file now
BEGIN_DRAIN = signal.SIGUSR1  # refuse new requests, but do not end
END_NOW = signal.SIGUSR2  # end without waiting for running requests

# A variable of a frontend whose parent sends END_NOW. SIGTERM reaches such a frontend from its parent, and also from a
# supervisor that signals every process of a service: a second one has no meaning.
SUPERVISED = "CONCH_SUPERVISED"
