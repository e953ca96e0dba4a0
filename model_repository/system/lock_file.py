"""Lock files, which name the holder of the lock.

Child processes that inherit the descriptor of a locked file hold the lock too. The file must stay: after a removal, two
processes could lock two files of one name.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any, TextIO


def try_lock(file: TextIO) -> bool:
    """Lock an open file if it is free, and return whether it was.

    Raises:
        OSError: its file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as exc:
        rule = f"this file system has no locks ({exc.strerror}): use another --home"
        raise OSError(exc.errno, rule, file.name) from exc
    return True


def write_holder(file: TextIO, **facts: object) -> None:
    """Write this process id and other facts in place of the content of a locked file.

    Raises:
        OSError: the disk is full.
    """
    try:
        file.truncate(0)
        os.write(file.fileno(), json.dumps({"pid": os.getpid(), **facts}).encode())
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, file.name) from exc


def read_holder(file: TextIO) -> dict[str, Any]:
    """Return the facts that the last holder wrote, if any; none while a process writes them."""
    file.seek(0)
    try:
        return dict(json.loads(file.read() or "{}"))
    except ValueError:
        return {}
