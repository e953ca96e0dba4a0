"""A forked process that answers one call at a time."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from model_repository.errors import EngineFailed, InternalError, StageError

logger = logging.getLogger(__name__)


class ForkedProcess:
    """Sends arguments to a process, and waits for its results. Any thread may call it.

    Args:
        main: runs in the process until the connection is closed. It answers each argument with a pair: `returned` and
            the result, `refused` and a StageError, or `failed` and a traceback. Arguments and results can be pickled.
        is_replaced: whether a process that has ended gets a successor.
    """

    def __init__(self, main: Callable[[Connection], None], *, is_replaced: bool = True) -> None:
        self._main = main
        self._is_replaced = is_replaced
        self._lock = threading.Lock()
        self._start()

    def call(self, argument: object, timeout_s: float | None = None) -> Any:
        """Return the result. A process that has ended is replaced, and so is one that exceeds the time.

        Raises:
            StageError: the process refused the argument; InternalError if it failed, ended meanwhile, or was too slow;
                EngineFailed if it has ended and is not replaced.
        """
        with self._lock:
            try:
                self._connection.send(argument)
            except OSError:  # it ended before
                self._restart()
                self._connection.send(argument)
            try:
                if not self._connection.poll(timeout_s):
                    logger.error("a forked process has not answered within %g s: it is killed", timeout_s)
                    os.kill(self._pid, signal.SIGKILL)
                kind, answer = self._connection.recv()
            except (OSError, EOFError) as exc:
                self._restart()
                raise InternalError() from exc
        if kind == "returned":
            return answer
        if kind == "refused":
            raise answer
        logger.error("a forked process failed:\n%s", answer)
        raise InternalError()

    def close(self) -> int:
        """End the process, and return its exit status; a negative one is a signal."""
        self._connection.close()
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _start(self) -> None:
        # A fork copies only the thread that calls it. If this thread has computed with OpenMP, its copy waits for
        # OpenMP's other threads, which do not exist there. A new thread has not computed.
        thread = threading.Thread(target=self._fork, name="fork")
        thread.start()
        thread.join()

    def _fork(self) -> None:
        # A fork and no new interpreter: the stages run inside Triton, not in an interpreter that could be spawned.
        self._connection, theirs = Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _run(theirs, self._main)
            finally:
                os._exit(0)
        theirs.close()

    def _restart(self) -> None:
        if not self._is_replaced:
            raise EngineFailed(f"process {self._pid} of the engine has ended, and only a new engine can replace it")
        logger.error("a forked process has ended with status %d: it is replaced", self.close())
        self._start()


def _run(connection: Connection, main: Callable[[Connection], None]) -> None:
    # Copies of other pipes would hide from their owners that they are closed. Their numbers stay in use: objects of the
    # parent may still write to them or close them, and would do so to new files with the same numbers.
    null = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in (connection.fileno(), null):
            os.dup2(null, int(name), inheritable=False)
    gc.freeze()  # a collection would walk through the parent's objects, and so copy their memory
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal: the parent ends this process
    try:
        main(connection)
    except (EOFError, OSError):
        pass  # the connection is closed
    except BaseException:
        traceback.print_exc()


def answer_of(function: Callable[[Any], Any], argument: object) -> tuple[str, Any]:
    """Return the answer to a call: the result of a function, or its exception."""
    try:
        return "returned", function(argument)
    except StageError as exc:
        return "refused", exc
    except MemoryError:
        raise
    except BaseException:  # a panic in Rust code is not an Exception
        return "failed", traceback.format_exc()
