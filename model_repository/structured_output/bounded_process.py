"""Work on a client's input in a separate process, which the kernel ends beyond its limits of time and memory.

llguidance's own limits are not enough: 59 patterns in one `allOf` allocate 6 GB and abort the process.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from model_repository.forked_process import ForkedProcess, answer_of

MAX_CPU_S = 0.5
MAX_BYTES = 32 << 20  # beyond the process's memory at its start
_NICENESS = 10  # a process gets a tenth of a contended core
_PAGE_BYTES = resource.getpagesize()


class TooCostly(Exception):
    """The work exceeded a limit; the text names it."""


class BoundedProcess(ForkedProcess):
    """Calls a function in a forked process, a new one for each call. One call at a time; any thread may wait for it.

    A process with a single thread forks them: the fork of a process with threads may inherit a held lock.

    Args:
        function: its argument and its result can be pickled. It raises only StageErrors.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__(lambda connection: _fork_for_each(connection, function))

    def call(self, argument: object, timeout_s: float | None = None) -> Any:
        """Return the function's result.

        Raises:
            TooCostly: the call exceeded MAX_CPU_S or MAX_BYTES.
            StageError: from the function; InternalError for any other exception.
        """
        result = super().call(argument, timeout_s)
        if isinstance(result, TooCostly):
            raise result
        return result


def _fork_for_each(connection: Connection, function: Callable[[Any], Any]) -> None:
    while True:
        argument = connection.recv()
        if (pid := os.fork()) == 0:
            _call(connection, function, argument)
        _, status = os.waitpid(pid, 0)
        if status:
            is_slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
            connection.send(("returned", TooCostly(_TOO_LONG if is_slow else _TOO_LARGE)))


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
        answer = answer_of(function, argument)
    except MemoryError:
        os._exit(1)
    signal.setitimer(signal.ITIMER_PROF, 0)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    connection.send(answer)
    os._exit(0)


def memory_bytes(field: int) -> int:
    """Return a field of /proc/self/statm in bytes: 1, the memory of this process; 5, its heap, data and stack."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[field]) * _PAGE_BYTES
