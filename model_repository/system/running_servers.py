"""The servers that run on this machine. The launcher of each holds a lock, and writes into its file what it serves."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from model_repository.system.lock_file import is_alive, is_in_our_namespace, read_holder, try_lock

LOCK_FILE = "launcher.lock"  # in the folder of a server
ARTIFACT_FILE = "artifact"  # in the folder of a model in a repository: the name of the artifact's folder


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server of this machine, or of a container that shares the home."""

    pid: int  # its launcher's
    is_here: bool  # its process ids are ours
    url: str
    folder: Path
    models: tuple[str, ...]  # their ids, and the names of their presets, at its start
    artifacts: tuple[str, ...]  # names of their folders; empty: a repository of an earlier version does not say

    @property
    def port(self) -> int | None:
        """The frontend's."""
        return urlsplit(self.url).port

    def stop(self) -> None:
        """Ask it to end, as Ctrl-C does."""
        os.kill(self.pid, signal.SIGINT)


def running_servers(home: Path) -> Iterator[RunningServer]:
    """Yield the servers that run, by their folders."""
    for path in sorted(home.glob(f"servers/*/{LOCK_FILE}")):
        with path.open(encoding="utf-8") as file:
            holder = read_holder(file)
            if not try_lock(file) and "url" in holder and is_alive(holder):
                is_here = is_in_our_namespace(holder, "pid")
                models, artifacts = (tuple(holder.get(key, ())) for key in ("models", "artifacts"))
                yield RunningServer(holder["pid"], is_here, holder["url"], path.parent, models, artifacts)
