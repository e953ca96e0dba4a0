"""Work on untrusted input in separate processes, which the kernel ends beyond their limits of time and memory."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from model_repository.system.forked_process import ForkedProcess, answer_of

_PAGE_BYTES = resource.getpagesize()


class TooCostly(Exception):
    """The work exceeded a limit; the text names it."""


class BoundedProcess(ForkedProcess):
    """Calls a function in a forked process, one call at a time; any thread may wait for it.

    A process with a single thread forks them: the fork of a process with threads may inherit a held lock.

    Args:
        function: its argument and its result can be pickled. It raises only StageErrors.
        max_cpu_s: processor time of a call.
        max_bytes: memory beyond that of the process at its start.
        is_kept: a process serves calls until it exceeds a limit; otherwise each call has a new one.
    """

    def __init__(
        self, function: Callable[[Any], Any], *, max_cpu_s: float, max_bytes: int, is_kept: bool = False
    ) -> None:
        self._too_long = TooCostly(f"more than {max_cpu_s:g} s of processor time")
        self._too_large = TooCostly(f"more than {max_bytes >> 20} MiB of memory")
        self._function, self._max_cpu_s, self._max_bytes, self._is_kept = function, max_cpu_s, max_bytes, is_kept
        super().__init__(self._fork_for_calls)

    def call(self, argument: object, timeout_s: float | None = None) -> Any:
        """Return the function's result.

        Raises:
            TooCostly: the call exceeded a limit.
            StageError: from the function; InternalError for any other exception.
        """
        result = super().call(argument, timeout_s)
        if isinstance(result, TooCostly):
            raise result
        return result

    def _fork_for_calls(self, connection: Connection) -> None:
        while True:
            argument = connection.recv()
            if (pid := os.fork()) == 0:
                self._serve(connection, argument)
            _, status = os.waitpid(pid, 0)
            if status:
                is_slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF
                connection.send(("returned", self._too_long if is_slow else self._too_large))

    def _serve(self, connection: Connection, argument: object) -> NoReturn:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limits = (memory_bytes(5) + self._max_bytes, hard)
        while True:
            resource.setrlimit(resource.RLIMIT_DATA, limits)
            signal.setitimer(signal.ITIMER_PROF, self._max_cpu_s)  # its signal ends the process
            try:
                answer = answer_of(self._function, argument)
            except MemoryError:
                os._exit(1)
            signal.setitimer(signal.ITIMER_PROF, 0)
            resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
            connection.send(answer)
            if not self._is_kept:
                os._exit(0)
            argument = connection.recv()


def memory_bytes(field: int) -> int:
    """Return a field of /proc/self/statm in bytes: 1, the memory of this process; 5, its heap, data and stack."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[field]) * _PAGE_BYTES
