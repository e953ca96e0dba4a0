"""The folder of each running server, with a lock that its launcher holds."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from frontend.launcher.errors import LaunchError
from model_repository.system.lock_file import is_alive, is_in_our_namespace, read_holder, try_lock, write_holder
from model_repository.system.running_servers import LOCK_FILE

_POLL_S = 0.05


@contextmanager
def server_lock(home: Path, name: str, *, is_shared: bool) -> Iterator[TextIO]:
    """Hold the lock of a folder for a server, and yield its file, which is in the folder.

    Containers that share a home may use the same port: the second one gets the folder `NAME-2`.

    Args:
        name: of the folder: the port.
        is_shared: servers of this machine may have the same name, too.

    Raises:
        LaunchError: another server has the port.
    """
    for number in itertools.count(1):
        folder = home / "servers" / (name if number == 1 else f"{name}-{number}")
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / LOCK_FILE).open("a+", encoding="utf-8") as file:
            if _is_taken(file, is_shared=is_shared):
                write_holder(file)
                yield file
                return


def _is_taken(file: TextIO, *, is_shared: bool) -> bool:
    """Take the lock, and return whether it is ours now; it is not if its holder may go on beside us.

    Raises:
        LaunchError: its holder has our port.
    """
    # The guard of a killed launcher holds the lock until all processes have ended, for some seconds.
    while not try_lock(file):
        holder = read_holder(file)
        if is_shared or not is_in_our_namespace(holder, "net"):
            return False
        if holder and is_alive(holder):
            where = "" if is_in_our_namespace(holder, "pid") else " of another container"
            does = f"already serves at {holder['url']}" if "url" in holder else "already builds or loads its models"
            hint = "`conch chat` talks to it; for another server, choose another --port"
            raise LaunchError(f"process {holder['pid']}{where} {does}: {hint}")
        time.sleep(_POLL_S)
    return True
