"""Lock files, which name the holder of the lock.

Child processes that inherit the descriptor of a locked file hold the lock too. The file must stay: after a removal, two
processes could lock two files of one name.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
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
    """Write this process id, its namespaces and other facts in place of the content of a locked file.

    Raises:
        OSError: the disk is full.
    """
    try:
        file.truncate(0)
        os.write(file.fileno(), json.dumps({"pid": os.getpid(), **_namespaces(), **facts}).encode())
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, file.name) from exc


def read_holder(file: TextIO) -> dict[str, Any]:
    """Return the facts that the last holder wrote, if any; none while a process writes them."""
    file.seek(0)
    try:
        return dict(json.loads(file.read() or "{}"))
    except ValueError:
        return {}


def is_alive(holder: Mapping[str, Any]) -> bool:
    """Whether the holder of a lock that is not free runs.

    The guard of a killed launcher holds its lock for some more seconds. The process ids of another container mean
    nothing here; its launcher and its guard end together.
    """
    if not is_in_our_namespace(holder, "pid"):
        return True
    try:
        return bool(Path(f"/proc/{holder['pid']}/cmdline").read_bytes())  # a zombie has none
    except FileNotFoundError:
        return False


def is_in_our_namespace(holder: Mapping[str, Any], kind: str) -> bool:
    """Whether the holder of a lock has our namespace of a kind: of process ids (`pid`), or of ports (`net`)."""
    name = f"{kind}_namespace"
    ours = _namespaces()[name]
    return bool(holder.get(name, ours) == ours)


def _namespaces() -> dict[str, str]:
    """Return a name of each namespace of this process that is the only one of all machines."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # /proc of a container may lack it
        boot = ""
    return {f"{kind}_namespace": f"{boot} {os.readlink(f'/proc/self/ns/{kind}')}" for kind in ("pid", "net")}
