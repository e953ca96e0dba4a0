"""Loads models in processes of their own: Triton's load keeps Python's lock until it ends, which may take minutes."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from model_repository.contract.tensors import LOADERS
from model_repository.errors import EngineFailed

logger = logging.getLogger(__name__)

_MAX_BYTES = 1 << 20  # of an order, or of its answer
_MAX_TEXT = 10_000  # characters of an error: a socket's buffer bounds a message too
_CONNECT_S = 10.0  # a loader that starts listens by then
_POLL_S = 0.05


def _path(name: str) -> Path:
    """Return a loader's socket, in the folder that the server runs in: each server has its own, made anew."""
    return Path(f"{name}.sock")


class Loader:
    """The end that loads.

    Args:
        name: of its stage, one of LOADERS.
        load: loads stages and ensembles by their Triton names; raises an error with the reason.
    """

    def __init__(self, name: str, load: Callable[[Sequence[str]], None]) -> None:
        self._load, path = load, _path(name)
        path.unlink(missing_ok=True)  # left by a killed one
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(path))
        self._socket.listen()
        threading.Thread(target=self._run, name="loader", daemon=True).start()

    def close(self) -> None:
        """Take no more orders."""
        self._socket.shutdown(socket.SHUT_RDWR)  # `close` alone does not end `accept`
        self._socket.close()

    def _run(self) -> None:
        while self._socket.fileno() >= 0:
            with contextlib.suppress(OSError):  # the arbiter has ended
                order, _ = self._socket.accept()
                with order:
                    error = ""
                    try:
                        self._load(json.loads(order.recv(_MAX_BYTES)))
                    except Exception as exc:
                        error = str(exc) or type(exc).__name__
                    order.send(json.dumps(error[:_MAX_TEXT]).encode())


class Loaders:
    """The end that gives orders: each loader has one at a time, the others wait.

    Args:
        start_again: starts a dead loader, by its name.
    """

    def __init__(self, start_again: Callable[[str], object]) -> None:
        self._start_again = start_again
        self._free = list(LOADERS)
        self._changed = threading.Condition()

    def load(self, names: Sequence[str]) -> str:
        """Load stages and ensembles by their Triton names; return the reason why that failed, empty: it did not.

        Raises:
            EngineFailed: the loader has ended while it loaded, or does not start.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._free)
            name = self._free.pop(0)
        try:
            answer = _answer(self._connected(name), names)
        finally:
            with self._changed:
                self._free.append(name)
                self._changed.notify()
        if not answer:
            self._start_again(name)
            raise EngineFailed("the process that loads models has ended")
        return str(json.loads(answer))

    def _connected(self, name: str) -> socket.socket:
        try:
            return _connected(_path(name))
        except OSError:  # it has ended when it had nothing to do
            self._start_again(name)
        try:
            return _connected(_path(name))
        except OSError as exc:
            raise EngineFailed("the process that loads models does not run") from exc


def _answer(connection: socket.socket, names: Sequence[str]) -> bytes:
    """Give an order, and return its answer; empty: the loader has ended."""
    with connection, contextlib.suppress(OSError):
        connection.send(json.dumps(list(names)).encode())
        return connection.recv(_MAX_BYTES)
    return b""


def _connected(path: Path) -> socket.socket:
    deadline_s = time.monotonic() + _CONNECT_S
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(str(path))
            return connection
        except OSError:
            connection.close()
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(_POLL_S)
