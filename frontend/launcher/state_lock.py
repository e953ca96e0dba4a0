"""A lock on a state directory, for one launcher at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from frontend.launcher.errors import AlreadyServing
from model_repository.system.lock_file import read_holder, try_lock

FILE_NAME = "launcher.lock"

_POLL_S = 0.05


@contextmanager
def locked(state_dir: Path) -> Iterator[TextIO]:
    """Hold the lock of a state directory, and yield its file, in which the holder writes its URL.

    Raises:
        AlreadyServing: another launcher holds it.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    with (state_dir / FILE_NAME).open("a+", encoding="utf-8") as file:
        # The guard of a killed launcher holds the lock until all processes have ended, for some seconds.
        while not try_lock(file):
            holder = read_holder(file)
            if holder and _is_alive(holder["pid"]):
                raise AlreadyServing(
                    f"process {holder['pid']} already serves {state_dir} at {holder['url']}: "
                    "`conch chat` talks to it; for another server, choose another --state-dir and --port"
                )
            time.sleep(_POLL_S)
        file.truncate(0)
        yield file


def _is_alive(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())  # a zombie has none
    except FileNotFoundError:
        return False
