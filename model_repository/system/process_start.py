"""The first steps of a command, whatever started it: a shell, a supervisor, or a container, as its process 1.

Standard library only: process 1 runs this file as a program.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Collection, Iterator

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # each ends a program that has no handler for it

_SI_KERNEL = 0x80  # si_code of a signal that no process has sent: see sigaction(2)


def prepare_process() -> None:
    """Open the standard streams that are closed, unblock the signals that end a program, and be no process 1.

    A parent may have closed the streams, or blocked the signals.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, "w" if number else "r")  # noqa: SIM115 - for the rest of the process
            os.set_inheritable(stream.fileno(), True)  # else the first file of a child would get its number
            setattr(sys, name, stream)
    if os.getpid() == 1:
        _leave_process_1()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)


@contextlib.contextmanager
def blocked(signals: Collection[signal.Signals]) -> Iterator[None]:
    """Block signals in this thread during the block, and for good in the processes that it starts there."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _leave_process_1() -> None:
    """Go on in a child. Process 1 gets every orphan, and the kernel keeps from it the signals without a handler."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if command := os.fork():
        os.execv(sys.executable, [sys.executable, "-I", "-S", __file__, str(command)])  # it needs little memory
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _be_process_1(command: int) -> None:
    """Wait for orphans, pass signals on to the command, and end as it does. All signals are blocked."""
    while True:
        received = signal.sigwaitinfo(signal.valid_signals())
        if received.si_signo == signal.SIGCHLD:
            _wait_for_ended(command)
        elif received.si_code != _SI_KERNEL or received.si_signo == signal.SIGHUP:
            # A terminal sends its other signals to the command too.
            with contextlib.suppress(ProcessLookupError):
                os.kill(command, received.si_signo)


def _wait_for_ended(command: int) -> None:
    """Wait for every child that has ended; end with the command."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == command:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
        if pid == 0:
            return


if __name__ == "__main__":
    _be_process_1(int(sys.argv[1]))
