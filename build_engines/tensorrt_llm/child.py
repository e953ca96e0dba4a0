"""Becomes another program, one that the kernel ends when the process which started it ends, however that comes.

Run as a file, before the program: `python child.py PARENT_PID PROGRAM ARGUMENTS...`. Standard library only; Linux only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent_pid: int, command: list[str]) -> None:
    """Ask for the signal, which outlives the change of program, and change."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it has ended before this
        os.kill(os.getpid(), signal.SIGKILL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
