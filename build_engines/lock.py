"""One builder at a time: lock files that name their holder, and cleaning up after killed builders."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from model_repository.system.lock_file import read_holder, try_lock, write_holder

logger = logging.getLogger(__name__)

_LEFTOVER = re.compile(r"\.(?P<name>.+)\.[a-z0-9_]{8}(\.old)?")  # names that `tempfile` makes


@contextlib.contextmanager
def locked(path: Path, purpose: str) -> Iterator[int]:
    """Lock a file for the block. While another process has the lock, log its name and wait.

    Child processes can inherit the yielded descriptor, and with it the lock: after a builder is killed, the next one
    waits until its tools have ended.

    Args:
        path: the lock file.
        purpose: of this holder, for the log of waiting processes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        if not try_lock(file):
            logger.info("waiting for %s", _holder(file, path))
            fcntl.flock(file, fcntl.LOCK_EX)
        _write_holder(file, purpose)
        yield file.fileno()


@contextlib.contextmanager
def locked_if_free(path: Path, purpose: str) -> Iterator[bool]:
    """Lock a file for the block if it is free, and yield whether it was."""
    with path.open("a+", encoding="utf-8") as file:
        is_ours = try_lock(file)
        if is_ours:
            _write_holder(file, purpose)
        yield is_ours


def remove_leftovers(target: Path) -> None:
    """Remove the folders of killed builders: `.NAME.RANDOM` of every NAME with a free lock.

    Args:
        target: its lock belongs to the caller.
    """
    for leftover in target.parent.glob(".*.*"):
        found = _LEFTOVER.fullmatch(leftover.name)
        if found is None or not leftover.is_dir():
            continue
        name = found["name"]
        lock = lock_path(target.with_name(name))
        if not lock.exists():
            continue
        with lock.open("a+", encoding="utf-8") as file:
            if name == target.name or try_lock(file):
                logger.info("removing %s of a killed build", leftover)
                shutil.rmtree(leftover, ignore_errors=True)


def lock_path(target: Path) -> Path:
    """Return the lock file of a target, in the same folder."""
    return target.with_name(f".{target.name}.lock")


def _write_holder(file: TextIO, purpose: str) -> None:
    write_holder(file, host=socket.gethostname(), purpose=purpose, since=time.time())


def _holder(file: TextIO, path: Path) -> str:
    holder = read_holder(file)
    if not holder:
        return f"another builder, with the lock {path}"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder["since"]))
    return f"process {holder['pid']} on {holder['host']} (or its tools), since {since}: {holder['purpose']}"
