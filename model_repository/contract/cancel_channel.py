"""Tells another stage that a client is gone: a datagram socket between the processes of two stages.

The detokenizer tells the engine. The engine tells the tokenizer, where a grammar may wait to be compiled. The arbiter
of models tells the engine that it is unloaded.

Triton shows a hang-up only to later steps of a request: those of the detokenizer. A Triton request from within
`execute` is Triton's own way from stage to stage; it crashed the server under cancellations (2.51).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

# From the arbiter to an engine, in place of a stream's number.
LEAVE = (1 << 64) - 1  # once no request runs, end all output streams and free the memory
END_REQUESTS = LEAVE - 1  # end all requests with an error

_NUMBER = struct.Struct("<Q")  # the number of an output stream, or a cancel key as a number
_MAX_BYTES = 1 << 20  # one message, which has several numbers, as few messages may wait in a socket


def key_to_number(cancel_key: str) -> int:
    """Return a number for a cancel key of any length."""
    return int.from_bytes(hashlib.blake2b(cancel_key.encode("utf-8", "replace"), digest_size=8).digest())


def _address(ensemble: str) -> str:
    """Return the socket's path, in the folder that the server runs in: each server has its own, made anew.

    A socket's path may have 107 bytes only.
    """
    return f"{hashlib.blake2b(ensemble.encode(), digest_size=12).hexdigest()}.sock"


class CancelReceiver:
    """The receiving end.

    Args:
        ensemble: name of the ensemble for its engine; name of the stage for a tokenizer.
        cancel: gets each number, in the receiver's thread; must return at once.
    """

    def __init__(self, ensemble: str, cancel: Callable[[int], None]) -> None:
        self._cancel = cancel
        self._address = _address(ensemble)
        Path(self._address).unlink(missing_ok=True)  # left by a killed engine
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._address)
        self._inode = os.stat(self._address).st_ino
        self._thread = threading.Thread(target=self._run, name="cancel-receiver", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and remove the socket."""
        self._socket.shutdown(socket.SHUT_RD)
        self._thread.join()
        self._socket.close()
        # Triton may load a new engine before it unloads the old one. Then the path is the new one's.
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._address).st_ino == self._inode:
                os.unlink(self._address)

    def _run(self) -> None:
        while message := self._socket.recv(_MAX_BYTES):
            for (number,) in _NUMBER.iter_unpack(message):
                self._cancel(number)


class CancelSender:
    """The sending end, for the receiver of the same name."""

    def __init__(self, ensemble: str) -> None:
        self._address = _address(ensemble)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._sent: deque[int] = deque(maxlen=1024)

    def cancel(self, *numbers: int) -> None:
        """Cancel output streams or requests once, although several batches of a stream may be in flight."""
        if not (unsent := [number for number in numbers if number not in self._sent]):
            return
        try:
            self._socket.sendto(b"".join(map(_NUMBER.pack, unsent)), self._address)
        except OSError as exc:
            # Without an engine there is no stream. With a full buffer, the next batch of a stream tries again.
            logger.warning("%d streams or requests could not be cancelled: %s", len(unsent), exc)
            return
        self._sent += unsent

    def close(self) -> None:
        self._socket.close()
