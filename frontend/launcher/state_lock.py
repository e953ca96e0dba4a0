"""The folder of each running server, with a lock that its launcher holds."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

from frontend.launcher.errors import AlreadyServing
from model_repository.contract.tensors import ensemble_to_model_id
from model_repository.system.lock_file import read_holder, try_lock

FILE_NAME = "launcher.lock"

_POLL_S = 0.05


def server_folder(home: Path, port: int) -> Path:
    """Return the folder of a server: its lock, log and repository. Servers on any free port have one for each process.

    Args:
        port: the frontend's; 0: any free one.
    """
    for left in home.glob("servers/pid-*"):
        if not _is_alive(int(left.name.removeprefix("pid-"))):
            shutil.rmtree(left, ignore_errors=True)
    return home / "servers" / (str(port) if port else f"pid-{os.getpid()}")


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server of this machine."""

    pid: int  # its launcher's
    url: str
    folder: Path
    models: tuple[str, ...]  # ids

    def numbers(self) -> tuple[int | None, int]:
        """Return its port and its process id."""
        return urlsplit(self.url).port, self.pid

    def stop(self) -> None:
        """Ask it to end, as Ctrl-C does."""
        os.kill(self.pid, signal.SIGINT)


def running_servers(home: Path) -> Iterator[RunningServer]:
    """Yield the servers that run, by their folders."""
    for path in sorted(home.glob(f"servers/*/{FILE_NAME}")):
        with path.open(encoding="utf-8") as file:
            holder = read_holder(file)
            if not try_lock(file) and holder and _is_alive(holder["pid"]):
                names = sorted(config.parent.name for config in Path(holder["repository"]).glob("*/config.pbtxt"))
                models = tuple(ensemble_to_model_id(name) for name in names if "__" not in name)
                yield RunningServer(holder["pid"], holder["url"], path.parent, models)


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
                    f"process {holder['pid']} already serves at {holder['url']}: `conch chat` talks to it; for another "
                    "server, choose another --port"
                )
            time.sleep(_POLL_S)
        file.truncate(0)
        yield file


def _is_alive(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())  # a zombie has none
    except FileNotFoundError:
        return False
