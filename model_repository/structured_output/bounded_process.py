"""Work on a client's input in a separate process, which the kernel ends beyond its limits of time and memory.

llguidance's own limits are not enough: 59 patterns in one `allOf` allocate 6 GB and abort the process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from model_repository.errors import InternalError, StageError

MAX_CPU_S = 0.5
MAX_BYTES = 32 << 20  # beyond the process's memory at its start
_NICENESS = 10  # a process gets a tenth of a contended core
_PAGE_BYTES = resource.getpagesize()

logger = logging.getLogger(__name__)


class TooCostly(Exception):
    """The work exceeded a limit; the text names it."""


class BoundedProcess:
    """Calls a function in a forked process, a new one for each call. One call at a time; any thread may wait for it.

    A process with a single thread forks them: the fork of a process with threads may inherit a held lock.

    Args:
        function: its argument and its result can be pickled. It raises only StageErrors.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._start()

    def call(self, argument: object) -> Any:
        """Return the function's result.

        Raises:
            TooCostly: the call exceeded MAX_CPU_S or MAX_BYTES.
            StageError: from the function; InternalError for any other exception.
        """
        with self._lock:
            try:
                self._connection.send(argument)
                kind, answer = self._connection.recv()
            except (OSError, EOFError) as exc:
                self._start()
                raise InternalError() from exc
        if kind == "returned":
            return answer
        if kind == "refused":
            raise answer
        if kind == "costly":
            raise TooCostly(answer)
        logger.error("unexpected exception in a bounded process:\n%s", answer)
        raise InternalError()

    def close(self) -> None:
        self._connection.close()
        self._process.join()

    def _start(self) -> None:
        context = get_context("fork")  # the stages run inside Triton, not in an interpreter that could be spawned
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_fork_for_each, args=(theirs, self._function), daemon=True)
        self._process.start()
        theirs.close()


def _fork_for_each(connection: Connection, function: Callable[[Any], Any]) -> NoReturn:
    for name in os.listdir("/proc/self/fd"):  # copies of other pipes would hide from their owners that they are closed
        if int(name) > 2 and int(name) != connection.fileno():
            with contextlib.suppress(OSError):
                os.close(int(name))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the parent ends this process
    with contextlib.suppress(EOFError, OSError):
        while True:
            argument = connection.recv()
            if (pid := os.fork()) == 0:
                _call(connection, function, argument)
            _, status = os.waitpid(pid, 0)
            if status:
                is_slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
                connection.send(("costly", _TOO_LONG if is_slow else _TOO_LARGE))
    os._exit(0)


_TOO_LONG = f"more than {MAX_CPU_S * 1e3:g} ms of processor time"
_TOO_LARGE = f"more than {MAX_BYTES >> 20} MiB of memory"


def _call(connection: Connection, function: Callable[[Any], Any], argument: object) -> NoReturn:
    os.nice(_NICENESS)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # an aborting llguidance prints many lines
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes(5) + MAX_BYTES, hard))
    signal.setitimer(signal.ITIMER_PROF, MAX_CPU_S)  # its signal ends the process
    try:
        answer = "returned", function(argument)
    except StageError as exc:
        answer = "refused", exc
    except MemoryError:
        os._exit(1)
    except BaseException:  # a panic in Rust code is not an Exception
        answer = "failed", traceback.format_exc()
    signal.setitimer(signal.ITIMER_PROF, 0)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    connection.send(answer)
    os._exit(0)


def memory_bytes(field: int) -> int:
    """Return a field of /proc/self/statm in bytes: 1, the memory of this process; 5, its heap, data and stack."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[field]) * _PAGE_BYTES
