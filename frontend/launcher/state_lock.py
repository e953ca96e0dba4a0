"""The folder of each running server, with a lock that its launcher holds."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from frontend.launcher.errors import AlreadyServing
from model_repository.system.lock_file import read_holder, try_lock
from model_repository.system.running_servers import LOCK_FILE, is_alive

_POLL_S = 0.05


def server_folder(home: Path, port: int) -> Path:
    """Return the folder of a server: its lock, log and repository. Servers on any free port have one for each process.

    Args:
        port: the frontend's; 0: any free one.
    """
    for left in home.glob("servers/pid-*"):
        if not is_alive(int(left.name.removeprefix("pid-"))):
            shutil.rmtree(left, ignore_errors=True)
    return home / "servers" / (str(port) if port else f"pid-{os.getpid()}")


@contextmanager
def locked(state_dir: Path) -> Iterator[TextIO]:
    """Hold the lock of a state directory, and yield its file, in which the holder writes its URL.

    Raises:
        AlreadyServing: another launcher holds it.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    with (state_dir / LOCK_FILE).open("a+", encoding="utf-8") as file:
        # The guard of a killed launcher holds the lock until all processes have ended, for some seconds.
        while not try_lock(file):
            holder = read_holder(file)
            if holder and is_alive(holder["pid"]):
                raise AlreadyServing(
                    f"process {holder['pid']} already serves at {holder['url']}: `conch chat` talks to it; for another "
                    "server, choose another --port"
                )
            time.sleep(_POLL_S)
        file.truncate(0)
        yield file
