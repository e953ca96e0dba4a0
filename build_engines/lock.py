"""One builder at a time: a lock file that says who holds it, and what killed builders left behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from build_engines.errors import BuildError

logger = logging.getLogger(__name__)

_LEFTOVER = re.compile(r"\.(?P<name>.+)\.[a-z0-9_]{8}(\.old)?")  # as `tempfile` makes names


@contextlib.contextmanager
def locked(path: Path, purpose: str) -> Iterator[int]:
    """Hold a lock file; while another holds it, say who, and wait.

    The descriptor that this yields can be handed to child processes. Whatever inherits it holds the lock too: when a
    builder is killed, the next one waits until its tools have ended. The file stays, since removing it would give two
    builders two files of one name.

    Args:
        path: the lock file.
        purpose: what the holder does, for those who wait.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        if not _try_lock(file):
            logger.info("waiting for %s", _holder(file, path))
            fcntl.flock(file, fcntl.LOCK_EX)
        _sign(file, purpose)
        yield file.fileno()


@contextlib.contextmanager
def locked_if_free(path: Path, purpose: str) -> Iterator[bool]:
    """Hold a lock file if nobody else does; yield whether that is so."""
    with path.open("a+", encoding="utf-8") as file:
        is_ours = _try_lock(file)
        if is_ours:
            _sign(file, purpose)
        yield is_ours


def remove_leftovers(held: Path) -> None:
    """Remove what killed builders left in a folder: `.NAME.RANDOM` of every NAME whose lock nobody holds.

    Args:
        held: the target whose lock the caller holds, which others would be refused.
    """
    for leftover in held.parent.glob(".*.*"):
        found = _LEFTOVER.fullmatch(leftover.name)
        if found is None or not leftover.is_dir():
            continue
        name = found["name"]
        lock = lock_path(held.with_name(name))
        if not lock.exists():
            continue
        with lock.open("a+", encoding="utf-8") as file:
            if name == held.name or _try_lock(file):
                logger.info("removing %s, which a killed build left", leftover)
                shutil.rmtree(leftover, ignore_errors=True)


def lock_path(target: Path) -> Path:
    """Return the lock file of something that is written in a folder."""
    return target.with_name(f".{target.name}.lock")


def _sign(file: TextIO, purpose: str) -> None:
    file.truncate(0)
    json.dump({"pid": os.getpid(), "host": socket.gethostname(), "purpose": purpose, "since": time.time()}, file)
    file.flush()


def _try_lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as exc:
        raise BuildError(f"{file.name}: this file system has no locks ({exc}): use another --state-dir") from exc
    return True


def _holder(file: TextIO, path: Path) -> str:
    holder = _read(file)
    if not holder:
        return f"another builder, which holds {path}"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(str(holder["since"]))))
    return f"process {holder['pid']} on {holder['host']} (or its tools), since {since}: {holder['purpose']}"


def _read(file: TextIO) -> dict[str, object]:
    file.seek(0)
    try:
        holder = json.loads(file.read() or "{}")
    except ValueError:  # it is being written
        return {}
    return holder if isinstance(holder, dict) else {}
