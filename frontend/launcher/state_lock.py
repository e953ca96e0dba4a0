"""A lock on a state directory, for one launcher at a time."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from frontend.launcher.errors import AlreadyServing

FILE_NAME = "launcher.lock"

_KILLED_HOLDER_WAIT_S = 8.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class StateLock:
    """A lock that is held. A process that inherits its descriptor holds it too."""

    file: TextIO

    def name_url(self, url: str) -> None:
        """Write the process id and the URL of the holder, for the message of a second launcher.

        Raises:
            OSError: the disk is full.
        """
        try:
            os.write(self.file.fileno(), json.dumps({"pid": os.getpid(), "url": url}).encode())
        except OSError as exc:
            raise OSError(exc.errno, exc.strerror, self.file.name) from exc


@contextmanager
def locked(state_dir: Path) -> Iterator[StateLock]:
    """Hold the lock of a state directory.

    Raises:
        AlreadyServing: another launcher holds it.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    with (state_dir / FILE_NAME).open("a+", encoding="utf-8") as file:
        give_up_at = time.monotonic() + _KILLED_HOLDER_WAIT_S
        while not _is_locked(file):
            file.seek(0)
            holder = json.loads(file.read() or "{}")
            # The guard of a killed launcher holds the lock until all processes have ended, for some seconds.
            if _is_alive(holder) or time.monotonic() >= give_up_at:
                raise AlreadyServing(
                    f"process {holder.get('pid', '?')} already serves {state_dir} at {holder.get('url', '?')}: "
                    "`conch chat` talks to it; for another server, choose another --state-dir and other ports"
                )
            time.sleep(_POLL_S)
        file.truncate(0)
        yield StateLock(file)


def _is_locked(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_alive(holder: dict[str, int]) -> bool:
    try:
        return "pid" in holder and bool(Path(f"/proc/{holder['pid']}/cmdline").read_bytes())  # a zombie has none
    except FileNotFoundError:
        return False
