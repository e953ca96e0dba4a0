"""A home in which a server seems to run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from model_repository.system.lock_file import try_lock, write_holder
from model_repository.system.running_servers import LOCK_FILE


@contextmanager
def serving(home: Path, *models: str, artifacts: Iterable[str] = ()) -> Iterator[str]:
    """Hold the lock of a server with these models, and yield its URL.

    Args:
        artifacts: the names of their folders; none: the server is of an earlier version.
    """
    folder, url = home / "servers" / "8123", "http://127.0.0.1:8123"
    folder.mkdir(parents=True)
    with (folder / LOCK_FILE).open("a+", encoding="utf-8") as file:
        assert try_lock(file)
        write_holder(file, url=url, models=models, artifacts=list(artifacts))
        yield url
